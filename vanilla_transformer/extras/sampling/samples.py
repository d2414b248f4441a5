"""Reproducible samples of translations: a line's sample depends only on the line and the seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vanilla_transformer.limits import SettingError, check_number, check_whole

if TYPE_CHECKING:
    import torch

# Number of steps for which random numbers are drawn together.
_BLOCK = 64


@dataclass(frozen=True)
class Sampling:
    """Draws translations from the model's own probabilities, by default from all of them.

    The draw depends only on the line and the seed, up to the rounding of its batch.

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


class SampledByRow:
    """A logits processor that leaves each row one token, drawn from the softmax of its scores.

    Each row has random numbers of its own: its tokens depend only on its seed and its scores, and torch's own
    generators are not used. Give it to `generate` as the last of its `logits_processor`, with `do_sample=True,
    num_beams=1, top_k=0, top_p=1.0, temperature=1.0`: the library would apply other values after the draw.

    Args:
        seeds: One seed per row, those of one sentence adjacent.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        import torch

        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._uniforms_RT = torch.empty(len(seeds), 0, dtype=torch.float64)

    def __call__(self, input_ids: "torch.Tensor", scores: "torch.Tensor") -> "torch.Tensor":
        """Returns the scores with all but the drawn tokens impossible."""
        import torch

        rows = torch.arange(len(scores), device=scores.device)
        tokens_R1 = self.draw(scores, rows, input_ids.shape[1])
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens_R1, 0.0)

    def draw(self, scores_RV: "torch.Tensor", rows: "torch.Tensor", length: int) -> "torch.Tensor":
        """Draws a token for each of some rows, (rows, 1), after `length` tokens, by inverting the cumulative sum."""
        import torch

        while self._uniforms_RT.shape[1] <= length:
            more = [torch.rand(_BLOCK, generator=one, dtype=torch.float64) for one in self._generators]
            self._uniforms_RT = torch.cat((self._uniforms_RT, torch.stack(more)), 1)
        sums_RV = scores_RV.float().softmax(-1).cumsum(-1)
        total_R1 = sums_RV[:, -1:]
        places_R1 = self._uniforms_RT[rows.cpu(), length, None].to(sums_RV) * total_R1
        # A number rounded up to the total would lie behind the last token.
        places_R1 = places_R1.minimum(total_R1.nextafter(torch.zeros_like(total_R1)))
        return torch.searchsorted(sums_RV, places_R1, right=True)
