"""What a translator decodes with, the graph or a model's own `generate`, and what it reads and writes text with."""

from collections.abc import Sequence
from typing import Protocol

from vanilla_transformer.graph.session import Found


class Tokens(Protocol):
    """Text to tokens, and back."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the tokens of each text, with its end."""

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Returns the texts of tokens."""

    def detokenize(self, text: str) -> str:
        """Returns text as decoding would give it, as references are compared."""


class Search(Protocol):
    """Source tokens to hypotheses.

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
