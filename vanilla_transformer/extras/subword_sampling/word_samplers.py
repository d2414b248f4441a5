"""Random splits of words by BPE-dropout (Provilkov et al. 2020) or a unigram model (Kudo 2018), many at a time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.model.tokenization_vanilla_transformer import MASK_TOKEN

# In bytes; anything longer is not a word, and is always split in the same way.
LONGEST_WORD = 100

Ints = NDArray[np.int64]
Word = str | int
"""The characters of a word as the tokenizer's model sees them, or the id of a token that is never split."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths, one after the other, and where each begins; the last of `starts` is the end."""

    values: NDArray[np.integer]
    starts: Ints

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """Return the same rows as one array."""
        values = np.fromiter((value for row in rows for value in row), dtype=np.int32)
        return cls(values, starts_of([len(row) for row in rows]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        """Return the length of each row."""
        return np.diff(self.starts)

    def select(self, rows: Ints) -> "Ragged":
        """Return the rows of these numbers, in their order."""
        lengths = self.lengths[rows]
        starts = starts_of(lengths)
        places = np.repeat(self.starts[rows] - starts[:-1], lengths) + np.arange(starts[-1])
        return Ragged(self.values[places], starts)


def starts_of(lengths: Sequence[int] | NDArray[np.integer]) -> Ints:
    """Return the offsets at which consecutive rows of these lengths begin, and the end of the last one."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


class WordSampler(Protocol):
    """Splits words of a list at random."""

    def sample(self, words: Ints, random: np.random.Generator) -> Ragged:
        """Return the ids of the pieces of each word, given by its number in the list."""


def unsupported_reason(parts: Mapping[str, Any], bpe_dropout: float | None) -> str | None:
    """Explain why the words of a tokenizer, parsed as JSON, cannot be sampled; None if they can."""
    model = parts["model"]
    wanted = "Unigram" if bpe_dropout is None else "BPE"
    if model["type"] != wanted or (wanted == "BPE" and not model["merges"]):
        option, algorithm = ("unigram_alpha", "unigram") if bpe_dropout is None else ("bpe_dropout", "bpe")
        return f"{option} needs a tokenizer of the algorithm {algorithm}, but this one has another: leave it out"
    unusual = ["continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk"]
    # `<mask>` is found as a piece this way; every learned piece is also the result of its merges.
    unusual += [] if MASK_TOKEN in model["vocab"] else ["ignore_merges"]
    if any(model.get(name) for name in unusual) or "ByteLevel" not in str(parts["pre_tokenizer"]):
        return "the tokenizer was not trained by this package, so its words cannot be split at random"
    return None


class BpeDropout:
    """BPE-dropout: at each merge in a word, each possible merge is left out at random.

    Algorithm 1 of Provilkov et al. 2020: of the remaining pairs, the one learned first is merged, and all are
    candidates again, until none is left. Without dropout this is byte-pair encoding.

    Args:
        tokenizer: A BPE tokenizer.
        model: Its model in JSON form.
        words: The list of words.
        dropout: The probability that a merge is left out.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, model: Mapping[str, Any], words: Sequence[Word], dropout: float
    ) -> None:
        vocabulary, self._dropout = model["vocab"], dropout
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        self._pairs = _Pairs([(vocabulary[first], vocabulary[second]) for first, second in pairs], len(vocabulary))
        self._joined = np.array([vocabulary[first + second] for first, second in pairs], dtype=np.int32)
        is_fixed = [isinstance(word, int) or len(word) > LONGEST_WORD for word in words]
        spelled = [
            _fixed_pieces(tokenizer, word) if fixed else [vocabulary[character] for character in str(word)]
            for word, fixed in zip(words, is_fixed, strict=True)
        ]
        self._symbols = Ragged.from_rows(spelled)
        ids = np.append(self._symbols.values, 0)
        self._ranks = self._pairs.ranks(ids[:-1], ids[1:])
        self._ranks[np.repeat(is_fixed, self._symbols.lengths)] = _NO_PAIR

    def sample(self, words: Ints, random: np.random.Generator) -> Ragged:
        """Return the ids of the pieces of each word.

        All words of n pieces are processed together, longest first: each is either done, or joins the words of n - 1
        pieces.
        """
        lengths = self._symbols.lengths[words]
        by_length = np.argsort(lengths, kind="stable")
        longest = int(lengths.max(initial=1))
        bounds = np.searchsorted(lengths[by_length], np.arange(longest + 2))
        counts = np.empty(len(words), dtype=np.int64)
        done: list[tuple[Ints, NDArray[np.int32]]] = []
        places: Ints = np.empty(0, dtype=np.int64)
        symbols, ranks = np.empty((0, longest), dtype=np.int32), np.empty((0, longest - 1), dtype=np.int32)
        for length in range(longest, 0, -1):
            new = by_length[bounds[length] : bounds[length + 1]]
            ids = self._symbols.starts[words[new], None] + np.arange(length)
            places = np.concatenate([places, new])
            symbols = np.concatenate([symbols, self._symbols.values[ids]])
            ranks = np.concatenate([ranks, self._ranks[ids[:, :-1]]])
            column, rank = self._choose(ranks, random)
            over = rank == _NO_PAIR
            counts[places[over]] = length
            done.append((places[over], symbols[over]))
            if length > 1:
                on = ~over
                places = places[on]
                symbols, ranks = self._join(symbols[on], ranks[on], column[on], rank[on])
        starts = starts_of(counts)
        values = np.empty(starts[-1], dtype=np.int32)
        for found, pieces in done:
            values[starts[found, None] + np.arange(pieces.shape[1])] = pieces
        return Ragged(values, starts)

    def _choose(self, ranks: NDArray[np.int32], random: np.random.Generator) -> tuple[Ints, NDArray[np.int32]]:
        """Return for each word the pair to merge, and its rank: `_NO_PAIR` if none is left."""
        count, pairs = ranks.shape
        if not pairs:
            return np.zeros(count, dtype=np.int64), np.full(count, _NO_PAIR, dtype=np.int32)
        column = ranks.argmin(axis=1)
        if self._dropout:
            # As many of the best pairs are left out as precede the first that is kept.
            left_out = random.geometric(1 - self._dropout, (count,)) - 1
            some = np.flatnonzero(left_out)
            order = np.argsort(ranks[some], axis=1, kind="stable")
            column[some] = np.take_along_axis(order, np.minimum(left_out[some], pairs - 1)[:, None], axis=1)[:, 0]
            rank = ranks[np.arange(count), column]
            rank[left_out >= pairs] = _NO_PAIR
            return column, rank
        return column, ranks[np.arange(count), column]

    def _join(
        self, symbols: NDArray[np.int32], ranks: NDArray[np.int32], column: Ints, rank: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return each word with the pieces at `column` and after it merged, and the ranks of its pairs."""
        count, length = symbols.shape
        rows, joined = np.arange(count), self._joined[rank]
        symbols = _without(symbols, column + 1)
        symbols[rows, column] = joined
        ranks = _without(ranks, column)
        before, after = np.flatnonzero(column > 0), np.flatnonzero(column < length - 2)
        ranks[before, column[before] - 1] = self._pairs.ranks(symbols[before, column[before] - 1], joined[before])
        ranks[after, column[after]] = self._pairs.ranks(joined[after], symbols[after, column[after] + 1])
        return symbols, ranks


_NO_PAIR = np.int32(2**31 - 1)
_EMPTY = np.uint64(2**64 - 1)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, as in Fibonacci hashing.


class _Pairs:
    """The ranks of pairs of ids: a hash table for arrays."""

    def __init__(self, pairs: Sequence[tuple[int, int]], ids: int) -> None:
        self._ids = np.uint64(ids)
        bits = (4 * len(pairs)).bit_length()
        self._shift, self._last = np.uint64(64 - bits), (1 << bits) - 1
        self._keys = np.full(1 << bits, _EMPTY)
        self._ranks = np.full(1 << bits, _NO_PAIR)
        keys = self._key(*np.array(pairs, dtype=np.int64).T)
        places = self._place(keys).tolist()
        for rank, (key, place) in enumerate(zip(keys, places, strict=True)):
            while self._keys[place] != _EMPTY:
                place = (place + 1) & self._last
            self._keys[place], self._ranks[place] = key, rank

    def ranks(self, first: NDArray[np.integer], second: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the rank of each pair, `_NO_PAIR` if it has none."""
        keys = self._key(first, second)
        places = self._place(keys)
        found = self._keys[places]
        other = np.flatnonzero((found != keys) & (found != _EMPTY))
        while len(other):
            places[other] = (places[other] + 1) & self._last
            found = self._keys[places[other]]
            other = other[(found != keys[other]) & (found != _EMPTY)]
        return self._ranks[places]

    def _key(self, first: NDArray[np.integer], second: NDArray[np.integer]) -> NDArray[np.uint64]:
        return first.astype(np.uint64) * self._ids + second.astype(np.uint64)

    def _place(self, keys: NDArray[np.uint64]) -> Ints:
        return ((keys * _MULTIPLIER) >> self._shift).astype(np.int64)


def _without(matrix: NDArray[np.int32], column: Ints) -> NDArray[np.int32]:
    """Return each row without its number in one column."""
    kept = np.ones(matrix.shape, dtype=bool)
    kept[np.arange(len(matrix)), column] = False
    return matrix[kept].reshape(len(matrix), matrix.shape[1] - 1)


class UnigramSampling:
    """Sampling of Kudo 2018: a word's split is drawn by its probability to the power of `alpha`.

    The draw is over all splits, not only the best few: the sums over the splits of each prefix of a word are computed
    once, and a split is drawn piece by piece from the end.

    Args:
        tokenizer: A Unigram tokenizer.
        model: Its model in JSON form.
        words: The list of words.
        alpha: 0 makes all splits equally likely, a large value selects the likeliest one.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, model: Mapping[str, Any], words: Sequence[Word], alpha: float
    ) -> None:
        # The ids of special tokens are not pieces of a word.
        added = {token.content for token in tokenizer.backend_tokenizer.get_added_tokens_decoder().values()}
        scores = {
            piece: (number, score * alpha)
            for number, (piece, score) in enumerate(model["vocab"])
            if piece not in added
        }
        longest = max(map(len, scores))
        states, pieces, steps, shares = [0], [], [], []
        first_states: list[int] = []
        for word in words:
            first_states.append(len(states) - 1)
            if isinstance(word, int) or len(word) > LONGEST_WORD:
                for number in _fixed_pieces(tokenizer, word):
                    pieces.append(number)
                    steps.append(1)
                    shares.append(1.0)
                    states.append(len(pieces))
                continue
            sums = [0.0]
            for end in range(1, len(word) + 1):
                ways = [
                    (known[0], end - start, sums[start] + known[1])
                    for start in range(max(0, end - longest), end)
                    if (known := scores.get(word[start:end])) is not None
                ]
                most = max(way[2] for way in ways)
                total = most + math.log(sum(math.exp(way[2] - most) for way in ways))
                sums.append(total)
                so_far = 0.0
                for number, step, score in ways:
                    so_far += math.exp(score - total)
                    pieces.append(number)
                    steps.append(step)
                    shares.append(so_far)
                states.append(len(pieces))
        first_states.append(len(states) - 1)
        self._words = np.array(first_states, dtype=np.int64)
        # One state for each prefix of each word; the last piece is found by the state plus its share.
        self._last = np.array(states[1:], dtype=np.int64) - 1
        self._shares = np.repeat(np.arange(len(states) - 1), np.diff(states)) + np.array(shares)
        self._pieces, self._steps = np.array(pieces, dtype=np.int32), np.array(steps, dtype=np.int64)

    def sample(self, words: Ints, random: np.random.Generator) -> Ragged:
        """Return the ids of the pieces of each word."""
        counts = np.zeros(len(words), dtype=np.int64)
        found: list[tuple[Ints, NDArray[np.int32]]] = []
        places, begins, states = np.arange(len(words)), self._words[words], self._words[words + 1]
        while len(places):
            # The state of the whole remainder is the one before the next word's first.
            drawn = np.searchsorted(self._shares, states - 1 + random.random(len(states)), side="right")
            way = np.minimum(drawn, self._last[states - 1])
            found.append((places, self._pieces[way]))
            counts[places] += 1
            states = states - self._steps[way]
            on = states > begins
            places, begins, states = places[on], begins[on], states[on]
        starts = starts_of(counts)
        values = np.empty(starts[-1], dtype=np.int32)
        for number, (drawn_places, pieces) in enumerate(found, start=1):
            values[starts[drawn_places + 1] - number] = pieces
        return Ragged(values, starts)


def _fixed_pieces(tokenizer: PreTrainedTokenizerFast, word: Word) -> list[int]:
    if isinstance(word, int):
        return [word]
    return [token.id for token in tokenizer.backend_tokenizer.model.tokenize(word)]
