"""Sampling with random numbers of each row's own: what stands beside a sentence in a batch changes nothing."""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

# Steps for which numbers are drawn together.
_BLOCK = 64


class SampledByRow(LogitsProcessor):
    """Leaves each row one token, drawn by the softmax of its scores with the row's own random numbers.

    To be given to `generate` as the last of its `logits_processor`, together with `do_sample=True, num_beams=1,
    top_k=0, top_p=1.0, temperature=1.0`: what the library changes by those it would change after the draw. torch's own
    generators are not asked, so that a row's tokens follow from its seed and its scores alone.

    Args:
        seeds: One for each row, those of one sentence together.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._uniforms_RT = torch.empty(len(seeds), 0, dtype=torch.float64)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """The scores with all but the drawn tokens impossible."""
        rows = torch.arange(len(scores), device=scores.device)
        tokens_R1 = self.draw(scores, rows, input_ids.shape[1])
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens_R1, 0.0)  # type: ignore[return-value]

    def draw(self, scores_RV: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
        """A token for each of some rows, (rows, 1), after `length` tokens: where its number falls among the sums."""
        while self._uniforms_RT.shape[1] <= length:
            more = [torch.rand(_BLOCK, generator=one, dtype=torch.float64) for one in self._generators]
            self._uniforms_RT = torch.cat((self._uniforms_RT, torch.stack(more)), 1)
        sums_RV = scores_RV.float().softmax(-1).cumsum(-1)
        total_R1 = sums_RV[:, -1:]
        places_R1 = self._uniforms_RT[rows.cpu(), length, None].to(sums_RV) * total_R1
        # Rounded up to all of it, a place would lie behind the last token.
        places_R1 = places_R1.minimum(total_R1.nextafter(torch.zeros_like(total_R1)))
        return torch.searchsorted(sums_RV, places_R1, right=True)


__all__ = ["SampledByRow"]
