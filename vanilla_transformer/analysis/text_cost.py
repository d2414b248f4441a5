"""What a text costs a language model, in one line."""

from typing import NamedTuple


class TextCost(NamedTuple):
    """What a text costs a model: the sum over its tokens of minus the logarithm of their probabilities.

    `context` is the most tokens that the model saw at once; a longer text is asked about in blocks of as many.
    """

    nats: float
    tokens: int
    context: int

    def __str__(self) -> str:
        return f"{self.nats!r} {self.tokens} {self.context}"

    @classmethod
    def parse(cls, text: str) -> "TextCost":
        """The cost that `str` wrote; that of an empty text is nothing."""
        nats, tokens, context = text.split() or ("0", "0", "0")
        return cls(float(nats), int(tokens), int(context))
