"""What a translator decodes with: the graph, or a model's own `generate`."""

from collections.abc import Sequence
from typing import Protocol

from vanilla_transformer.graph.session import Found, Session


class Tokens(Protocol):
    """Text to tokens, and back."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the tokens of each text, with its end."""

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Returns the texts of tokens."""

    def detokenize(self, text: str) -> str:
        """Returns text as decoding would give it, as references are compared."""


class Search(Tokens, Protocol):
    """Text to tokens, tokens to hypotheses, and back.

    Attributes:
        device: `cpu` or `accelerator`.
        precision: The type in which it computes.
        num_beams: Width of the beam.
        num_return_sequences: Number of hypotheses of each row.
        max_positions: Tokens that a source may have; None if that is unlimited.
        side_by_side: Number of calls that are best made at a time.
    """

    device: str
    precision: str
    num_beams: int
    num_return_sequences: int
    max_positions: int | None
    side_by_side: int

    def search(self, rows: Sequence[Sequence[int]]) -> list[list[Found]]:
        """Returns the hypotheses of each row of source tokens, best first."""


class GraphSearch:
    """The graph, on a processor, and a tokenizer."""

    device = "cpu"

    def __init__(self, session: Session, tokenizer: Tokens) -> None:
        self.encode, self.decode, self.detokenize = tokenizer.encode, tokenizer.decode, tokenizer.detokenize
        self.search = session.translate
        self.precision, self.side_by_side = session.precision, session.side_by_side
        settings = session.settings
        self.num_beams, self.num_return_sequences = settings.num_beams, settings.num_return_sequences
        self.max_positions = settings.max_positions
