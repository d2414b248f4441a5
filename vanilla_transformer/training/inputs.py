"""The data of a run: corpora as text, the vocabulary (section 5.1), and tokens."""

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.data.corpus import corpus_languages, corpus_sides, read_corpus
from vanilla_transformer.data.preparation import MixedCorpus, PreparedCorpus, StoredCorpus, prepare_corpus
from vanilla_transformer.data.sources import TextForm, refuse_pipes, table_suffix
from vanilla_transformer.errors import CorpusError, RunError, SettingError
from vanilla_transformer.loading.tokenizers import load_own_tokenizer
from vanilla_transformer.model_directory import RECIPE
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.checkpoints import has_checkpoints
from vanilla_transformer.training.run_directory import RunDirectory
from vanilla_transformer.training.vocabulary import make_tokenizer

_ROWS_AT_ONCE = 10_000
# A cell as programs quote it: a quote at both ends, and doubled ones inside.
_QUOTED = re.compile('"(?=.*"".*")([^"]|"")*"')
# Shorter pieces of packed text, such as the names of speakers, occur everywhere.
_SHORT_PIECE = 40


@dataclass(frozen=True)
class Inputs:
    """Corpora as text and as tokens, None where there is none, and the two languages if known.

    `recipe` is the given one, completed by values that come from the text itself.
    """

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    train: PreparedCorpus
    dev: PreparedCorpus | None
    dev_text: Dataset | None
    test_text: Dataset | None
    languages: tuple[str | None, str | None]

    @cached_property
    def items(self) -> int:
        """The number of target tokens, or other loss items, in an epoch."""
        return int(task_for(self.recipe).items(*self.train.lengths.values()).sum(dtype=np.int64))


def gather_inputs(recipe: Recipe, run: RunDirectory, report: Callable[[str], None]) -> Inputs:
    """Reads the corpora, learns or loads the tokenizer and prepares the tokens."""
    task = task_for(recipe)
    if not recipe.data.train:
        raise SettingError(f"There is no training data: give the {task.form.unit} as --train.")
    cache, corpora = run.prepared / "text", {name: recipe.data.corpora(name) for name in ("train", "dev", "test")}
    refuse_pipes([corpus for several in corpora.values() for corpus in several])
    texts = {
        name: [read_corpus(corpus, form=task.form, cache_dir=cache) for corpus in several]
        for name, several in corpora.items()
    }
    train, dev, test = texts["train"], *(next(iter(texts[name]), None) for name in ("dev", "test"))
    recipe = task.with_labels(recipe, texts)
    if not has_checkpoints(run.checkpoints):
        _check_directions(texts, task.form)
        for sentence in _warnings(texts, task.form):
            report(sentence)
    tokenizer = make_tokenizer(recipe, run, train, report)
    encoder = task.encoder(recipe)

    def prepared(place: str, name: str, text: Dataset) -> StoredCorpus:
        length, directory = recipe.data.max_length, run.prepared / place
        corpus = prepare_corpus(text, tokenizer, encoder, max_length=length, directory=directory)
        report(f"{name}: {corpus.report.describe(task.form.unit)}")
        return corpus

    names = ["train"] if len(train) == 1 else [f"train, {corpus}" for corpus in corpora["train"]]
    parts = list(map(prepared, _places(recipe), names, train))
    learned = _together(recipe, parts)
    if isinstance(learned, MixedCorpus):
        for corpus, part, rows in zip(corpora["train"], parts, learned.shares, strict=True):
            report(
                f"An epoch of {len(learned):,} {task.form.unit} has {rows:,} of {corpus}, {rows / len(learned):.1%}: "
                f"each {'once' if rows == len(part) else f'{rows / len(part):.4g} times'}."
            )
    return Inputs(
        recipe,
        tokenizer,
        learned,
        None if dev is None else prepared("dev", "dev", dev),
        dev_text=dev,
        test_text=test,
        languages=corpus_languages(train[0]),
    )


def open_inputs(recipe: Recipe, run: RunDirectory) -> Inputs:
    """Opens what the main process has gathered by its recipe, without the text."""
    if not (run.path / RECIPE).is_file():
        raise RunError(
            f"{run.path.absolute()} on {socket.gethostname()} is not the output directory of the main process: all "
            "processes need one on a disk that they share, and the same command."
        )
    learned = _together(recipe, [StoredCorpus(run.prepared / place) for place in _places(recipe)])
    dev = StoredCorpus(run.prepared / "dev") if recipe.data.dev else None
    return Inputs(recipe, load_own_tokenizer(run.path), learned, dev, None, None, (None, None))


def _places(recipe: Recipe) -> list[str]:
    """Returns the names of the prepared corpora to learn from."""
    number = len(recipe.data.corpora("train"))
    return ["train"] if number == 1 else [f"train-{one}" for one in range(1, number + 1)]


def _together(recipe: Recipe, parts: Sequence[StoredCorpus]) -> StoredCorpus | MixedCorpus:
    if len(parts) == 1:
        return parts[0]
    weights = [corpus.weight for corpus in recipe.data.corpora("train") if corpus.weight is not None]
    return MixedCorpus(parts, weights or None, seed=recipe.optimization.seed)


def _check_directions(texts: Mapping[str, Sequence[Dataset]], form: TextForm) -> None:
    """Raises CorpusError if `dev` or `test` has its two sides in the other order than all of `train`."""
    if not form.parallel:
        return

    def names(corpus: Dataset) -> tuple[str | None, ...]:
        """Returns the column names or languages; for a table without names its first line, which may be a header."""
        sides = corpus_sides(corpus)
        return next(_rows(corpus, form.names)) if sides == ("1", "2") else sides

    learned = [names(corpus) for corpus in texts["train"]]
    for corpus in (*texts["dev"], *texts["test"]):
        found = names(corpus)
        if all(found) and found[0] != found[1] and found not in learned and found[::-1] in learned:
            raise CorpusError(
                f"{corpus.info.description} has {found[0]!r} and {found[1]!r} in the other order than the training "
                "data. Exchange its two files or columns, or name its source_column and target_column."
            )


def _warnings(texts: Mapping[str, Sequence[Dataset]], form: TextForm) -> Iterator[str]:
    """Warns of likely mistakes in the choice of corpora: quotes, examples to copy, and examples also in `train`."""
    columns, unit = form.names, form.unit
    for name, corpora in texts.items():
        if form.parallel and any(all(a == b for a, b in _rows(corpus, columns)) for corpus in corpora):
            yield f"Warning: both sides of {name} are the same text, so the model can only learn to copy."
        for file in (corpus for corpus in corpora if table_suffix(corpus.info.description or "") == ".tsv"):
            quoted = sum(_QUOTED.fullmatch(cell) is not None for row in _rows(file, columns) for cell in row)
            if quoted:
                yield (
                    f"Warning: {quoted:,} cells of {file.info.description} begin and end with a quote, and contain "
                    "doubled quotes. In TSV, quotes are text. Save such a table as CSV."
                )
    # Labels are not compared, because a text that occurs in `train` with another label is known too.
    compared = form.without_labels()
    columns, needed = compared.names, [number for number, one in enumerate(compared.columns) if not one.optional]

    def rows_of(corpus: Dataset) -> Iterator[tuple[str, ...]]:
        for row in _rows(corpus, columns):
            if all(row[number].strip() for number in needed) and not (form.packed and len(row[0]) < _SHORT_PIECE):
                yield row

    for name, others in (("dev", ["train"]), ("test", ["train", "dev"])):
        for corpus in texts[name]:
            rows = list(rows_of(corpus))
            for other in others:
                known = set(rows).intersection(row for text in texts[other] for row in rows_of(text))
                if known:
                    count = sum(row in known for row in rows)
                    yield (
                        f"Warning: {count:,} of {len(rows):,} {unit} of {name} also occur in {other}, so their scores "
                        "overestimate quality on new text."
                    )


def _rows(corpus: Dataset, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for table in corpus.with_format("arrow").iter(_ROWS_AT_ONCE):
        yield from zip(*(table[name].to_pylist() for name in columns), strict=True)
