"""The cost of a text under a language model, in one line."""

from typing import NamedTuple


class TextCost(NamedTuple):
    """The cost of a text: the sum over its tokens of their negative log-probabilities.

    `context` is the maximum number of tokens that the model saw at once; a longer text is scored in blocks of that
    size, each `stride` tokens after the one before. `ends` tells whether the end of the text is one of its tokens.
    """

    nats: float
    tokens: int
    context: int
    stride: int
    ends: bool = True

    def __str__(self) -> str:
        return f"{self.nats!r} {self.tokens} {self.context} {self.stride} {int(self.ends)}"

    @property
    def line(self) -> str:
        """Returns the line of `predict` and `evaluate --output`: log-probability in nats, and number of tokens."""
        return f"{-self.nats:.4f}\t{self.tokens}"

    @classmethod
    def parse(cls, text: str) -> "TextCost":
        """Reads the cost that `str` wrote; an empty text costs nothing."""
        nats, *others = text.split() or ["0", "0", "0", "0", "1"]
        tokens, context, stride, ends = map(int, others)
        return cls(float(nats), tokens, context, stride, bool(ends))
