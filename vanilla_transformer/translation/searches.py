"""What a translator decodes with: the graph, or the model's own `generate`.

`open_search` chooses, before anything heavy is loaded.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.directory import open_session
from vanilla_transformer.graph.session import Found, Session
from vanilla_transformer.machine import has_accelerator
from vanilla_transformer.translation.tokenizer_file import TokenizerFile

logger = logging.getLogger(__name__)


class Tokens(Protocol):
    """Text to tokens, and back."""

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the tokens of each text, with its end."""

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Returns the texts of tokens."""


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
        self.encode, self.decode, self.search = tokenizer.encode, tokenizer.decode, session.translate
        self.precision, self.side_by_side = session.precision, session.side_by_side
        settings = session.settings
        self.num_beams, self.num_return_sequences = settings.num_beams, settings.num_return_sequences
        self.max_positions = settings.positions


def open_search(models: Sequence[str], *, precision: str, device: str | None, **settings: Any) -> Search:
    """Loads a model, or an ensemble of several, with what decodes it fastest.

    Args:
        models: Directories or Hub ids.
        precision: `auto`, `float32`, `bfloat16` or `int8`.
        device: As torch names it; None for an accelerator if there is one.
        settings: Of the search, as arguments of `generate`.

    Raises:
        ModelError: There is no such model, or it does not translate.
        ValueError: It cannot be had in this precision.
    """
    path = Path(models[0])
    # Whether there is an accelerator that torch can use is asked of torch.
    on_cpu = device == "cpu" or (device is None and not has_accelerator())
    if on_cpu and len(models) == 1 and precision != "bfloat16" and path.is_dir():
        tokenizer = TokenizerFile.of(path)
        try:
            if tokenizer is None:
                raise ModelError("its tokenizer")
            session = open_session(path, settings, precision)
            if len(tokenizer) > session.vocab_size:
                raise ModelError(f"a tokenizer of {len(tokenizer):,} entries")
            return GraphSearch(session, tokenizer)
        except ModelError as unknown:
            logger.info("%s is read by transformers, because the graph does not know %s.", path, unknown)
    from vanilla_transformer.translation.live_models import load_search

    return load_search(models, precision=precision, device=device, **settings)
