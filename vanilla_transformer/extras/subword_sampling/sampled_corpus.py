"""Sub-word sampling: the words of a corpus are split anew for each epoch, the next one during training."""

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from vanilla_transformer.data.columns import PAIRS, TextForm
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.token_corpus import EpochPart, Lengths, PreparedCorpus, Rows, TrainingCorpus
from vanilla_transformer.extras.background import in_background
from vanilla_transformer.extras.mixing.mixed_corpus import MixedCorpus
from vanilla_transformer.extras.subword_sampling.word_samplers import (
    BpeDropout,
    Ints,
    Ragged,
    UnigramSampling,
    Word,
    WordSampler,
    starts_of,
    unsupported_reason,
)
from vanilla_transformer.fingerprints import fingerprint_settings
from vanilla_transformer.model.tokenization_vanilla_transformer import cased

# Rows whose words are split together: another number changes their random numbers.
BLOCK = 8192
# Spawn key of this module's random numbers; no other part of a run uses it.
_SPAWN_KEY = 2
# A piece's symbol for the space before it.
_SPACE = "Ġ"


class SampledCorpus(TrainingCorpus):
    """A corpus in tokens whose words are split anew for each epoch.

    The words are found in the tokens once. An epoch is drawn as a whole, because batches are planned by lengths. The
    draw depends only on the seed, the epoch and the position of a row, so that each process and each resumed run draws
    the same. A thread draws the next epoch in the meantime. A row that becomes longer than `max_length` keeps its
    usual pieces in that epoch. If the words of a row have tags, the first piece of a word is marked as in the tokens:
    ids are doubled, plus one where a word begins.

    Its counts (`token_counts`, `all_lengths`) are those of the first epoch.

    Args:
        corpus: The tokens.
        tokenizer: The tokenizer that made them.
        bpe_dropout: The probability that a merge of two pieces is left out.
        unigram_alpha: The power to which each split's probability is raised if a unigram model is sampled instead.
        columns: The columns of the corpus that are sampled.
        form: The form of the text behind the tokens. A block of a longer text that begins or ends within a word keeps
            its pieces.
        max_length: Maximum ids in a column of a row.
        seed: Determines the pieces drawn.

    Raises:
        CorpusError: The tokenizer splits words in an unknown way.
    """

    def __init__(
        self,
        corpus: PreparedCorpus,
        tokenizer: PreTrainedTokenizerFast,
        *,
        bpe_dropout: float | None = None,
        unigram_alpha: float | None = None,
        columns: tuple[str, ...],
        form: TextForm = PAIRS,
        max_length: int,
        seed: int,
    ) -> None:
        parts = json.loads(tokenizer.backend_tokenizer.to_str())
        reason = unsupported_reason(parts, bpe_dropout)
        if reason is not None:
            raise CorpusError(reason)
        self._corpus, self.columns, self._max_length, self._seed = corpus, columns, max_length, seed
        self._marked = form.tagged
        self.report, self.texts = corpus.report, corpus.texts
        self.tokens = fingerprint_settings([corpus.tokens, bpe_dropout, unigram_alpha, columns])
        numbers: dict[Word, int] = {}
        parts_of = corpus.parts if isinstance(corpus, MixedCorpus) else (corpus,)
        self._words = {name: _words(parts_of, name, tokenizer, numbers, form) for name in columns}
        self._sampler: WordSampler
        if unigram_alpha is None:
            self._sampler = BpeDropout(tokenizer, parts["model"], list(numbers), bpe_dropout or 0)
        else:
            self._sampler = UnigramSampling(tokenizer, parts["model"], list(numbers), unigram_alpha)
        first = self.draw(0)
        self._lengths = tuple(first.lengths.values())
        self._next: tuple[int, Future[PreparedCorpus]] = 0, in_background(lambda: first, "first epoch")

    def __len__(self) -> int:
        return len(self._corpus)

    @property
    def token_counts(self) -> tuple[int, ...]:
        """The ids of the first epoch, for each column."""
        return tuple(int(lengths.sum(dtype=np.int64)) for lengths in self._lengths)

    def epoch_parts(self, epoch: int, first: int = 0) -> Iterator[EpochPart]:
        """Yield all rows as one part."""
        if first == 0:
            yield EpochPart(0, self._taken(epoch))

    def all_lengths(self) -> Iterator[tuple[Lengths, ...]]:
        """Yield the lengths of the first epoch at once."""
        yield self._lengths

    def _taken(self, epoch: int) -> PreparedCorpus:
        """Return the rows of an epoch, while a thread starts on the next one."""
        number, drawing = self._next
        sampled = drawing.result() if number == epoch else self.draw(epoch)
        self._next = epoch + 1, in_background(lambda: self.draw(epoch + 1), "next epoch")
        return sampled

    def draw(self, epoch: int) -> PreparedCorpus:
        """Return the rows of an epoch."""
        usual = self._corpus.of_epoch(epoch)
        rows = usual.pairs if isinstance(usual, MixedCorpus) else np.arange(len(usual))
        drawn = {name: self._column(usual, name, rows, epoch) for name in self.columns}
        return _SampledEpoch(usual, drawn)

    def _column(self, usual: PreparedCorpus, name: str, rows: Ints, epoch: int) -> Ragged:
        """Return one column of an epoch."""
        number = list(usual.lengths).index(name)
        blocks = []
        for start in range(0, len(rows), BLOCK):
            key = _SPAWN_KEY, number, start // BLOCK
            random = np.random.default_rng(np.random.SeedSequence([self._seed, epoch], spawn_key=key))
            words = self._words[name].select(rows[start : start + BLOCK])
            drawn = self._drawn(words.values.astype(np.int64), random)
            blocks.append(self._short_enough(Ragged(drawn.values, drawn.starts[words.starts]), usual, name, start))
        lengths = np.concatenate([block.lengths for block in blocks])
        return Ragged(np.concatenate([block.values for block in blocks]), starts_of(lengths))

    def _drawn(self, words: Ints, random: np.random.Generator) -> Ragged:
        """Return the pieces of words, marked where the words are."""
        if not self._marked:
            return self._sampler.sample(words, random)
        pieces = self._sampler.sample(words // 2, random)
        values = 2 * pieces.values
        values[pieces.starts[:-1]] += words % 2
        return Ragged(values, pieces.starts)

    def _short_enough(self, drawn: Ragged, usual: PreparedCorpus, name: str, start: int) -> Ragged:
        """Return the drawn rows, numbered from `start`, with the usual pieces for rows that have become too long."""
        longer = np.flatnonzero(drawn.lengths > self._max_length)
        # 16-bit ids where the tokens have them: half the memory of 32-bit ones.
        kind = usual.rows([0])[name][0].dtype
        if not len(longer):
            return Ragged(drawn.values.astype(kind), drawn.starts)
        rows = np.split(drawn.values.astype(kind), drawn.starts[1:-1])
        for row, ids in zip(longer.tolist(), usual.rows(longer + start)[name], strict=True):
            rows[row] = ids
        return Ragged(np.concatenate(rows), starts_of([len(row) for row in rows]))


class _SampledEpoch(PreparedCorpus):
    """The rows of an epoch: drawn columns, and the usual ones beside them."""

    def __init__(self, usual: PreparedCorpus, drawn: Mapping[str, Ragged]) -> None:
        self._usual = usual
        self._drawn = {name: (one.values, one.starts) for name, one in drawn.items()}
        self.report, self.tokens, self.texts = usual.report, usual.tokens, usual.texts
        lengths = {name: column.lengths.astype(np.int32) for name, column in drawn.items()}
        self.lengths = {name: lengths.get(name, column) for name, column in usual.lengths.items()}

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices`, by column."""
        rows: dict[str, Sequence[Any]] = dict(self._usual.rows(indices))
        for name, (values, starts) in self._drawn.items():
            rows[name] = [values[starts[index] : starts[index + 1]] for index in np.asarray(indices).tolist()]
        return rows


def _words(
    parts: Sequence[PreparedCorpus],
    name: str,
    tokenizer: PreTrainedTokenizerFast,
    numbers: dict[Word, int],
    form: TextForm,
) -> Ragged:
    """Return the words of each row of a column as numbers; new words are numbered in their order.

    If words have tags, the numbers are marked as the ids are.

    Raises:
        CorpusError: The words of a row do not make up its pieces.
    """
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    sizes = np.zeros(len(tokenizer), dtype=np.int64)
    for piece, number in tokenizer.get_vocab().items():
        sizes[number] = 1 if number in added else len(piece)
    found, counts = array("i"), array("i")
    for part in parts:
        for start in range(0, len(part), BLOCK):
            rows = part.rows(np.arange(start, min(start + BLOCK, len(part))))[name]
            marks = [row % 2 if form.tagged else np.zeros_like(row) for row in rows]
            rows = [row // 2 for row in rows] if form.tagged else rows
            split = _split(rows, marks, tokenizer, added)
            for place, (ids, words) in enumerate(zip(rows, split, strict=True), start=start):
                if sizes[ids].sum() != sum(1 if isinstance(word, int) else len(word) for word, _ in words):
                    if not form.in_blocks:
                        raise CorpusError(
                            f"row {place + 1:,} has words that do not match its pieces: the tokenizer was "
                            "not trained by this package, so its words cannot be split at random"
                        )
                    words = [(number, 0) for number in ids.tolist()]
                for word, mark in words:
                    number = numbers.setdefault(word, len(numbers))
                    found.append(2 * number + mark if form.tagged else number)
                counts.append(len(words))
    return Ragged(np.array(found), starts_of(np.array(counts)))


def _split(
    rows: Sequence[NDArray[np.integer]],
    marks: Sequence[NDArray[np.integer]],
    tokenizer: PreTrainedTokenizerFast,
    added: Mapping[int, object],
) -> Iterator[list[tuple[Word, int]]]:
    """Yield the words of each row with their marks; added tokens, such as the end, are words of their own."""
    backend = tokenizer.backend_tokenizer
    # Ids of lower-cased text give text already in lower case, and a target keeps its case.
    normalizer, pre_tokenizer = cased(backend.normalizer), backend.pre_tokenizer
    cut = [list(_segments(ids.tolist(), mark.tolist(), added)) for ids, mark in zip(rows, marks, strict=True)]
    texts = iter(backend.decode_batch([one for row in cut for one, _ in row if isinstance(one, list)]))
    for row in cut:
        words: list[tuple[Word, int]] = []
        for at, (one, mark) in enumerate(row):
            if isinstance(one, int):
                words.append((one, mark))
                continue
            text = next(texts)
            text = text if normalizer is None else normalizer.normalize_str(text)
            pieces = [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]
            if at and not (backend.id_to_token(one[0]) or "").startswith(_SPACE):
                # A token inside the text has no space after it, as the text's start has.
                pieces = [word for word in (pieces[0].removeprefix(_SPACE), *pieces[1:]) if word]
            words.extend((word, mark if place == 0 else 0) for place, word in enumerate(pieces))
        yield words


def _segments(ids: list[int], marks: list[int], added: Mapping[int, object]) -> Iterator[tuple[list[int] | int, int]]:
    """Yield runs of usual ids, split at each mark and each added id, with the mark of the first id."""
    start = 0
    for place, number in enumerate(ids):
        if number in added or marks[place]:
            if place > start:
                yield ids[start:place], marks[start]
            start = place
        if number in added:
            yield number, marks[place]
            start = place + 1
    if start < len(ids):
        yield ids[start:], marks[start]
