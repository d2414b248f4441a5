"""Sampling with random numbers of each row's own: the other sentences of a batch change nothing."""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

# Number of steps for which random numbers are drawn together.
_BLOCK = 64


class SampledByRow(LogitsProcessor):
    """Leaves each row one token, drawn from the softmax of its scores with the row's own random numbers.

    Give it to `generate` as the last of its `logits_processor`, with `do_sample=True, num_beams=1, top_k=0, top_p=1.0,
    temperature=1.0`: the library would apply other values after the draw. torch's own generators are not used, so
    that a row's tokens depend only on its seed and its scores.

    Args:
        seeds: One seed per row, those of one sentence adjacent.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._uniforms_RT = torch.empty(len(seeds), 0, dtype=torch.float64)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Returns the scores with all but the drawn tokens impossible."""
        rows = torch.arange(len(scores), device=scores.device)
        tokens_R1 = self.draw(scores, rows, input_ids.shape[1])
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens_R1, 0.0)  # type: ignore[return-value]

    def draw(self, scores_RV: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Draws a token for each of some rows, (rows, 1), after `length` tokens, by inverting the cumulative sum."""
        while self._uniforms_RT.shape[1] <= length:
            more = [torch.rand(_BLOCK, generator=one, dtype=torch.float64) for one in self._generators]
            self._uniforms_RT = torch.cat((self._uniforms_RT, torch.stack(more)), 1)
        sums_RV = scores_RV.float().softmax(-1).cumsum(-1)
        total_R1 = sums_RV[:, -1:]
        places_R1 = self._uniforms_RT[rows.cpu(), length, None].to(sums_RV) * total_R1
        # A number rounded up to the total would lie behind the last token.
        places_R1 = places_R1.minimum(total_R1.nextafter(torch.zeros_like(total_R1)))
        return torch.searchsorted(sums_RV, places_R1, right=True)


__all__ = ["SampledByRow"]
