"""Corpora in shards: text is tokenized in numbered tasks, on any number of machines, before training."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vanilla_transformer.atomic_files import named_when_full
from vanilla_transformer.data.corpus import corpus_languages, open_corpus
from vanilla_transformer.data.preparation import refuse_nothing, settings_fingerprint, write_token_file
from vanilla_transformer.data.row_hashes import TextHash
from vanilla_transformer.data.tables import Row
from vanilla_transformer.data.text_streams import TextStream, sample_rows
from vanilla_transformer.data.token_corpus import PreparationReport, TokenFile
from vanilla_transformer.extras.many_machines.corpus_parts import (
    CorpusPiece,
    corpus_identity,
    cut_corpora,
    merged,
    read_pieces,
)
from vanilla_transformer.extras.many_machines.folder import TaskError, TaskFolder, in_ranges, job_digest
from vanilla_transformer.extras.many_machines.parts import PartsError
from vanilla_transformer.extras.many_machines.prepared import TOKENIZER_FILES, load_shared_tokenizer, share_tokenizer
from vanilla_transformer.extras.many_machines.shards import MANIFEST, Manifest, Shard, lengths_name, tokens_name
from vanilla_transformer.fingerprints import fingerprint_settings
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task, task_for
from vanilla_transformer.training.vocabulary import (
    MOST_ROWS_FOR_THE_VOCABULARY,
    check_tokenizer,
    check_vocab_size,
    learn_tokenizer,
)
from vanilla_transformer.translation.loading import load_own_tokenizer

PIECES = "pieces.json"
# The number of places from which the sample for the vocabulary is drawn.
PLACES = 1_000
# The recipe fields that decide the tokens, besides the text itself.
_FIELDS = (
    *("task", "documents", "max_length", "vocab_size", "seed"),
    *("tokenizer", "tokenizer_algorithm", "tokenizer_sides", "tokenizer_lowercase"),
)


def report_name(number: int) -> str:
    """Returns the name of the record of a shard's task."""
    return f"report-{number:05d}.json"


class ShardPreparation:
    """Tasks that tokenize the text of a recipe into shards.

    First it makes what the tasks need, if missing: the places at which the text is cut, and the tokenizer.

    Args:
        recipe: Names the text, the task and the tokenizer; its other settings are ignored.
        url: A directory, on any file system that fsspec knows.
        tasks: Number of tasks.
        say: Called with what a user should know.

    Raises:
        RecipeError, ValueError, OSError: The text or the directory cannot be used; the message says what to do.
    """

    def __init__(self, recipe: Recipe, url: str, tasks: int, say: Callable[[str], None]) -> None:
        self.tasks, self._say = tasks, say
        self._task = task_for(recipe)
        self._task.check(recipe)
        recipe.extras["classification"].complete(recipe)  # Refuses labels for a task that has none.
        self._form, self._corpora = self._task.form, recipe.data.corpora("train")
        if not self._corpora:
            raise RecipeError("There is no text to prepare: give it as --train.")
        if any(corpus.weight is not None for corpus in self._corpora):
            raise RecipeError("A prepared corpus holds each text once: leave the weights out.")
        self.folder = TaskFolder(url)
        self._scratch = tempfile.TemporaryDirectory(prefix="vanilla-transformer-", ignore_cleanup_errors=True)
        self._cache = Path(self._scratch.name)
        self._job = self._described(recipe)
        self.folder.check(self._job)
        kept = self.folder.read(PIECES) or self._cut(recipe)
        self.folder.claim(self._job)
        self._pieces = [[CorpusPiece.from_json(values) for values in place] for place in kept["places"]]
        self._places_of_task = len(self._pieces) // tasks
        self.recipe = recipe.with_options(labels=kept["labels"])
        self._encoder = self._task.encoder(self.recipe)
        if self.folder.size(TOKENIZER_FILES[-1]) is None:
            share_tokenizer(self._make_tokenizer(), self.folder)
        self.tokenizer = load_shared_tokenizer(self.folder)
        self._settings = settings_fingerprint(self.tokenizer, self._encoder, recipe.data.max_length)

    def run_task(self, number: int) -> bool:
        """Runs a task, unless it is done; returns True if there was something to do.

        Raises:
            TaskError: The task was done from another text.
            OSError, ValueError: The text cannot be read, or the shard cannot be written.
        """
        if self._is_done(number):
            return False
        # The name is the same in every process: two that run the task at once write the same bytes.
        name = fingerprint_settings([job_digest(self._job), self._settings, number])
        with tempfile.TemporaryDirectory() as directory:
            tokens, lengths = Path(directory, tokens_name(number)), Path(directory, lengths_name(number))
            with named_when_full(tokens, tokens):
                made = write_token_file(
                    self._text(number), tokens, name, self.tokenizer, self._encoder, self.recipe.data.max_length
                )
            kind = np.uint16 if self.recipe.data.max_length < 1 << 16 else np.uint32
            counts = np.stack([column.astype(kind) for column in TokenFile(tokens).lengths().values()])
            np.save(lengths, counts)
            record = {
                "job": job_digest(self._job),
                "settings": self._settings,
                "id": name,
                **made,
                "token_counts": counts.sum(axis=1, dtype=np.int64).tolist(),
                "sizes": [file.stat().st_size for file in (tokens, lengths)],
            }
            for file in (tokens, lengths):
                self.folder.put(file, file.name)
        self.folder.write(report_name(number), record)
        return True

    def finish(self) -> Manifest | None:
        """Writes the manifest if all tasks are done, and returns it; None while some are not.

        Raises:
            TaskError: A shard was made for another job or with another tokenizer.
            CorpusError: No row is left in any shard.
        """
        if self.unfinished():
            return None
        shards = tuple(self._shard(number) for number in range(self.tasks))
        task, recipe = self._task, self.recipe
        knows_languages = self._form.parallel and self._is_here()
        languages = corpus_languages(self._corpora[0], cache_dir=self._cache) if knows_languages else (None, None)
        columns, length = self._encoder.columns, recipe.data.max_length
        manifest = Manifest(task.name, columns, length, self._settings, languages, recipe["labels"], shards)
        refuse_nothing(" + ".join(map(str, self._corpora)), manifest.report, self._form, length)
        self.folder.write(MANIFEST, manifest.to_json())
        return manifest

    def unfinished(self) -> list[int]:
        """Lists the tasks that have no record yet."""
        there = self.folder.names()
        names = report_name, tokens_name, lengths_name
        return [number for number in range(self.tasks) if not {name(number) for name in names} <= there]

    def refuse_unfinished(self) -> None:
        """Raises TaskError if tasks are unfinished."""
        if missing := self.unfinished():
            raise TaskError(
                f"{len(missing):,} of {self.tasks:,} tasks in {self.folder.url} are missing: "
                f"{in_ranges(missing)}. Run the same command again to continue with them."
            )

    def _described(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the settings that all tasks share, by their names in messages."""
        text = [corpus_identity(corpus) for corpus in self._corpora]
        fields = {name: recipe[name] for name in _FIELDS}
        labels = None if recipe["labels"] is None else list(recipe["labels"])
        return {**fields, "labels": labels, "text": text, "number of --tasks": self.tasks}

    def _cut(self, recipe: Recipe) -> dict[str, Any]:
        """Cuts the text into parts, and these into places for a sample, and saves the places for all tasks.

        Also saves the settings that the text itself decides.
        """
        finer = -(-PLACES // self.tasks) * self.tasks
        try:
            places = cut_corpora(self._corpora, finer, self._cache, self._form)
        except PartsError:
            places = cut_corpora(self._corpora, self.tasks, self._cache, self._form)
        pieces = list(merged(piece for place in places for piece in place))
        of_corpora = [[one for one in pieces if one.corpus == number] for number in range(len(self._corpora))]
        streams = [
            TextStream(str(corpus), partial(self._read, its), form=self._form)
            for corpus, its in zip(self._corpora, of_corpora, strict=True)
        ]
        labels = self._task.complete(recipe, {"train": streams, "dev": [], "test": []})["labels"]
        values = {"places": [[asdict(piece) for piece in place] for place in places], "labels": labels}
        self.folder.write(PIECES, values)
        return values

    def _make_tokenizer(self) -> VanillaTransformerTokenizer:
        """Returns the tokenizer that the recipe names, or one trained on a sample."""
        recipe = self.recipe
        if recipe.tokenizer.name is not None:
            tokenizer = load_own_tokenizer(recipe.tokenizer.name)
            check_tokenizer(tokenizer, recipe.tokenizer.name, self._task.special_tokens)
        else:
            tokenizer = learn_tokenizer(recipe, *self._sample(), self._say)
        check_vocab_size(tokenizer, recipe)
        return tokenizer

    def _sample(self) -> tuple[int, list[Row]]:
        """Returns the number of pairs, and all of them, or for a large corpus a sample from random places."""
        counts = [piece.rows for place in self._pieces for piece in place]
        if None in counts:
            streams = [open_corpus(corpus, form=self._form, cache_dir=self._cache) for corpus in self._corpora]
            numbers, _, sample = sample_rows(streams, MOST_ROWS_FOR_THE_VOCABULARY)
            return sum(numbers), sample
        total, most = sum(filter(None, counts)), MOST_ROWS_FOR_THE_VOCABULARY
        if total <= most:
            return total, list(self._rows(merged(chain.from_iterable(self._pieces))))
        order = np.random.default_rng(self.recipe.optimization.seed).permutation(len(self._pieces)).tolist()
        # Twice as many from each place as needed, so that about half of the places are read.
        each, sample = -(-2 * most // len(order)), []
        for place in order:
            if len(sample) < most:
                sample += islice(self._rows(self._pieces[place]), each)
        return total, sample

    def _rows(self, pieces: Iterable[CorpusPiece]) -> Iterator[Row]:
        for table in self._read(pieces):
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)

    def _text(self, number: int) -> Iterator[pa.Table]:
        places = self._pieces[number * self._places_of_task : (number + 1) * self._places_of_task]
        return self._read(merged(chain.from_iterable(places)))

    def _read(self, pieces: Iterable[CorpusPiece]) -> Iterator[pa.Table]:
        return read_pieces(self._corpora, pieces, self._cache, self._form)

    def _is_done(self, number: int) -> bool:
        """Returns True if a task is done; raises TaskError if it was done from another text."""
        record, names = self.folder.read(report_name(number)), (tokens_name(number), lengths_name(number))
        if record is None or record["settings"] != self._settings:
            return False
        if [self.folder.size(name) for name in names] != record["sizes"]:
            return False
        text = TextHash()
        for table in self._text(number):
            text.update(table)
        if text.hexdigest() != record["text"]:
            raise TaskError(
                f"Task {number} of {self.folder.url} is done, but was made from another text: restore that "
                "text, or name another directory."
            )
        return True

    def _shard(self, number: int) -> Shard:
        record = self.folder.read(report_name(number)) or {}
        if (record.get("job"), record.get("settings")) != (job_digest(self._job), self._settings):
            raise TaskError(
                f"Shard {number} in {self.folder.url} belongs to another job or tokenizer: delete "
                f"{report_name(number)}, and run task {number} again."
            )
        report = {name: record[name] for name in PreparationReport.__dataclass_fields__}
        return Shard.from_json({"number": number, "report": report, **record})

    def _is_here(self) -> bool:
        return not any("://" in path for path in self._corpora[0].parts)


def in_words(manifest: Manifest) -> str:
    """Summarizes a prepared corpus."""
    tokens = " + ".join(f"{sum(counts):,}" for counts in zip(*(s.token_counts for s in manifest.shards), strict=True))
    rows = manifest.report.describe(get_task(manifest.task).form)
    return f"{rows}, {tokens} tokens in {len(manifest.shards):,} shards"
