"""Reproducible samples of translations: a line's sample depends only on the line and the seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vanilla_transformer.limits import SettingError, check_number, check_whole


@dataclass(frozen=True)
class Sampling:
    """Draws translations from the model's own probabilities, by default from all of them.

    Attributes:
        seed: Determines the samples.
        top_k: Draw among this many of the likeliest tokens.
        top_p: Draw among the likeliest tokens whose probabilities sum to this.
        temperature: Divisor of the logits: below 1 likely tokens become likelier.

    Raises:
        SettingError: A setting is invalid.
    """

    seed: int = 1
    top_k: int | None = None
    top_p: float | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.seed is None:
            raise SettingError("seed", "must be a whole number, not None.")
        check_whole("seed", self.seed)
        check_whole("top_k", self.top_k, 1)
        check_number("top_p", self.top_p, 0, 1, above=True)
        check_number("temperature", self.temperature, 0, above=True)

    def arguments(self, rows: Sequence[Sequence[int]], samples: int) -> dict[str, Any]:
        """Returns arguments of `generate` that draw `samples` translations of each row of source tokens."""
        from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        from vanilla_transformer.translation.row_sampling import SampledByRow

        parts: list[Any] = []
        if self.temperature != 1:
            parts.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k is not None:
            parts.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None and self.top_p < 1:
            parts.append(TopPLogitsWarper(self.top_p))
        parts.append(SampledByRow([self._seed_of(row, number) for row in rows for number in range(samples)]))
        plain = {"do_sample": True, "num_beams": 1, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
        return {**plain, "logits_processor": LogitsProcessorList(parts)}

    def _seed_of(self, row: Sequence[int], number: int) -> int:
        """Returns the seed of a row's sample from its tokens: the same wherever the row stands."""
        words = " ".join(map(str, (self.seed, number, *row)))
        return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=7).digest())
