"""Several corpora as one, where small ones come again until each has the share that its weight asks for."""

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from vanilla_transformer.data.preparation import PreparationReport, PreparedCorpus, Rows, rows_of_several
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.fingerprints import fingerprint_settings

# An epoch is planned in memory: about 30 bytes a pair, and 16 more where a share is drawn anew in each.
MOST_PAIRS_IN_AN_EPOCH = 1_000_000_000


class MixedCorpus(PreparedCorpus):
    """Prepared corpora one after the other, each as often as its weight asks for.

    Nothing is left out: the corpus that is largest for its weight is there once, the others come again as a whole
    and, for what is then missing, with pairs drawn from all along them, anew for each epoch. The same corpora,
    weights, seed and epoch give the same pairs at the same positions. This is what `datasets.interleave_datasets` does
    until all its datasets are exhausted, with shares that are exact and not drawn, and without a copy of the text.

    Args:
        parts: The corpora.
        weights: How much of an epoch each makes, in any unit; without them every pair is there once.
        seed: Another one draws other pairs for the shares that are no whole number of repetitions.
        epoch: And so does another epoch.

    Attributes:
        shares: How many pairs of each part are in an epoch.
        pairs: Where each pair of the epoch stands among those of the parts, one part after the other.
    """

    def __init__(
        self, parts: Sequence[PreparedCorpus], weights: Sequence[float] | None = None, *, seed: int, epoch: int = 0
    ) -> None:
        self.parts, self._weights, self._seed, self._epoch = tuple(parts), weights, seed, epoch
        sizes = [len(part) for part in self.parts]
        self.shares = _shares(sizes, weights) if weights is not None else sizes
        self._starts = np.cumsum([0, *sizes])
        self.pairs = np.concatenate(
            [
                start + _repeated(size, share, np.random.default_rng([seed, number, *([epoch] if epoch else [])]))
                for number, (start, size, share) in enumerate(zip(self._starts, sizes, self.shares, strict=False))
            ]
        )
        self.lengths = {
            name: np.concatenate([part.lengths[name] for part in self.parts])[self.pairs]
            for name in self.parts[0].lengths
        }
        self.report = PreparationReport(*np.sum([astuple(part.report) for part in self.parts], axis=0).tolist())
        identity = [[part.tokens for part in self.parts], self.shares, seed]
        self.tokens = fingerprint_settings(identity)
        self.texts = tuple(text for part in self.parts for text in part.texts)

    def of_epoch(self, epoch: int) -> PreparedCorpus:
        """Return the pairs of an epoch, with other ones drawn for shares that are no whole number of repetitions."""
        draws = any(share % len(part) for part, share in zip(self.parts, self.shares, strict=True))
        if epoch == self._epoch or not draws:
            return self
        return MixedCorpus(self.parts, self._weights, seed=self._seed, epoch=epoch)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column."""
        pairs = self.pairs[np.asarray(indices, dtype=np.int64)]
        if not len(pairs):
            return {name: [] for name in self.lengths}
        return rows_of_several(self.parts, self._starts[:-1], pairs)


def _shares(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return the pairs of each corpus in the smallest epoch that holds all pairs and has these weights."""
    pairs_per_weight = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    if pairs_per_weight * sum(weights) > MOST_PAIRS_IN_AN_EPOCH:
        raise CorpusError(
            f"with the weights {', '.join(f'{weight:g}' for weight in weights)} an epoch that holds each pair has "
            f"{pairs_per_weight * sum(weights):,.0f} pairs: give the larger corpora more weight"
        )
    return [max(size, round(weight * pairs_per_weight)) for size, weight in zip(sizes, weights, strict=True)]


def _repeated(size: int, share: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return `share` of the numbers below `size`, none of them twice more often than another."""
    times, rest = divmod(share, size)
    return np.concatenate([np.tile(np.arange(size), times), np.sort(random.choice(size, rest, replace=False))])
