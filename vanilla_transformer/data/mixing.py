"""Several corpora as one, each with its share of an epoch."""

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from vanilla_transformer.data.corpus import fingerprint_settings
from vanilla_transformer.data.encoding import Rows
from vanilla_transformer.data.preparation import PreparationReport, PreparedCorpus, StoredCorpus
from vanilla_transformer.errors import CorpusError

# An epoch is planned in memory: about 30 bytes per pair, and 16 more if a share is drawn anew in each epoch.
MAX_PAIRS_IN_AN_EPOCH = 1_000_000_000
# Times that a pair is repeated on average.
MAX_REPEATS = 1000


class MixedCorpus(PreparedCorpus):
    """Prepared corpora one after the other, each repeated according to its weight.

    Nothing is left out: the corpus that is largest for its weight occurs once; the others repeat as a whole and, for
    the remainder, with pairs drawn evenly along them, anew for each epoch. The same corpora, weights, seed and epoch
    give the same pairs at the same positions. This equals `datasets.interleave_datasets` until all its datasets are
    exhausted, but with exact shares instead of drawn ones, and without a copy of the text.

    Args:
        weights: Share of each in an epoch, in any unit; without weights every pair occurs once.

    Attributes:
        shares: Number of pairs of each part in an epoch.
        pairs: Position of each pair of the epoch among those of the parts, one part after the other.
    """

    def __init__(
        self, parts: Sequence[StoredCorpus], weights: Sequence[float] | None = None, *, seed: int, epoch: int = 0
    ) -> None:
        self.parts, self._weights, self._seed, self._epoch = tuple(parts), weights, seed, epoch
        sizes = [len(part) for part in self.parts]
        self.shares = _shares(sizes, weights) if weights is not None else sizes
        self.columns = {
            name: [piece for part in self.parts for piece in part.columns[name]] for name in self.parts[0].columns
        }
        self.starts = np.cumsum([0, *(rows for part in self.parts for rows in np.diff(part.starts))])
        self.pairs = np.concatenate(
            [
                start + _repeated(size, share, np.random.default_rng([seed, number, *([epoch] if epoch else [])]))
                for number, (start, size, share) in enumerate(
                    zip(np.cumsum([0, *sizes]), sizes, self.shares, strict=False)
                )
            ]
        )
        self.lengths = {
            name: np.concatenate([part.lengths[name] for part in self.parts])[self.pairs]
            for name in self.parts[0].lengths
        }
        self.report = PreparationReport(*np.sum([astuple(part.report) for part in self.parts], axis=0).tolist())
        identity = [[part.tokens for part in self.parts], self.shares, seed]
        self.tokens = fingerprint_settings(identity)

    def of_epoch(self, epoch: int) -> PreparedCorpus:
        """Returns the pairs of an epoch; shares that are not a whole number of repetitions are drawn anew."""
        draws = any(share % len(part) for part, share in zip(self.parts, self.shares, strict=True))
        if epoch == self._epoch or not draws:
            return self
        return MixedCorpus(self.parts, self._weights, seed=self._seed, epoch=epoch)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Returns the ids of the rows at `indices`, by column."""
        return super().rows(self.pairs[np.asarray(indices, dtype=np.int64)])


def _shares(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Returns the number of pairs of each corpus in the smallest epoch that holds all pairs and has these weights."""
    pairs_per_weight = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    if pairs_per_weight * sum(weights) > min(MAX_PAIRS_IN_AN_EPOCH, MAX_REPEATS * sum(sizes)):
        raise CorpusError(
            f"with the weights {', '.join(f'{weight:g}' for weight in weights)}, an epoch that holds every "
            f"pair would have {pairs_per_weight * sum(weights):,.0f} pairs: give the larger corpora more "
            "weight"
        )
    return [max(size, round(weight * pairs_per_weight)) for size, weight in zip(sizes, weights, strict=True)]


def _repeated(size: int, share: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Returns `share` of the numbers below `size`, whose repetitions differ by at most one."""
    times, rest = divmod(share, size)
    return np.concatenate([np.tile(np.arange(size), times), np.sort(random.choice(size, rest, replace=False))])
