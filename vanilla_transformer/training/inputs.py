"""Inputs of a run: the corpora as text, the tokenizer, and the corpora as tokens."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vanilla_transformer.atomic_files import atomic_write_files, atomic_write_text
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.corpus import corpus_languages, open_corpus, read_corpus, row_place
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.row_hashes import has_equal_sides
from vanilla_transformer.data.sources import Corpora
from vanilla_transformer.data.text_streams import TextStream, sample_rows, stream_of
from vanilla_transformer.data.token_corpus import PreparedCorpus
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.model.tokenization_vanilla_transformer import (
    VanillaTransformerTokenizer,
)
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.checkpoints import has_checkpoints, remove_partial_files
from vanilla_transformer.training.mixed_corpus import mix
from vanilla_transformer.training.run_directory import RunDirectory
from vanilla_transformer.training.vocabulary import (
    MOST_ROWS_FOR_THE_VOCABULARY,
    check_tokenizer,
    check_vocab_size,
    describe_unseen_characters,
    learn_tokenizer,
)
from vanilla_transformer.translation.loading import load_own_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Inputs:
    """Corpora as text and as tokens, None where there is none, and the two languages if known.

    `recipe` is the given one, completed by values that come from the text itself.
    """

    recipe: Recipe
    tokenizer: VanillaTransformerTokenizer
    train: PreparedCorpus
    dev: PreparedCorpus | None
    dev_text: "Dataset | None"
    test_text: "Dataset | None"
    languages: tuple[str | None, str | None]


def gather_inputs(recipe: Recipe, run: RunDirectory, say: Callable[[str], None]) -> Inputs:
    """Reads the corpora, learns or loads the tokenizer and prepares the tokens."""
    task = task_for(recipe)
    if not recipe.data.train:
        raise RecipeError(f"There is no training data: give the {task.form.unit} as --train.")
    corpora, cache = recipe.data.corpora("train"), run.prepared / "text"
    train = [open_corpus(corpus, form=task.form, cache_dir=cache) for corpus in corpora]
    held_out = {field: _read_held_out(recipe.data.corpora(field), task.form, cache) for field in ("dev", "test")}
    dev, test = ((None if one is None else one[0]) for one in held_out.values())
    streams = {field: [] if one is None else [one[1]] for field, one in held_out.items()}
    recipe = task.complete(recipe, {"train": train, **streams})
    tokenizer, train = _tokenizer(recipe, run, train, say)
    parts = prepare_train(corpora, train, tokenizer, recipe, run.prepared, say)
    prepared = parts[0] if len(parts) == 1 else mix(corpora, parts, recipe, say)
    languages = corpus_languages(corpora[0], cache_dir=cache) if task.form.parallel else (None, None)
    if recipe.tokenizer.tokenizer_algorithm == "character":
        unseen = (describe_unseen_characters(recipe, train, name, held) for name, held in streams.items())
        for sentence in filter(None, unseen):
            say(sentence)
    prepared_dev = None
    if dev is not None:
        prepared_dev = _prepare(run.prepared / "dev", "dev", streams["dev"][0], tokenizer, recipe, say)
    texts = {
        "train": prepared.texts,
        "dev": () if prepared_dev is None else prepared_dev.texts,
        "test": () if test is None else (streams["test"][0].text_hash(),),
    }
    for sentence in _doubts(texts):
        say(sentence)
    return Inputs(recipe, tokenizer, prepared, prepared_dev, dev_text=dev, test_text=test, languages=languages)


def _doubts(texts: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Warns of likely mistakes in the choice of corpora, by the hashes of their texts."""
    for name, hashes in texts.items():
        if any(map(has_equal_sides, hashes)):
            yield f"Attention: both sides of {name} are the same text, so the model can only learn to copy."
    for name, others in (("dev", ["train"]), ("test", ["train", "dev"])):
        for other in others:
            if not set(texts[name]).isdisjoint(texts[other]):
                yield f"Attention: {name} is the same text as {other}, so scores on it say little about new text."


def _read_held_out(corpora: Corpora, form: TextForm, cache: Path) -> "tuple[Dataset, TextStream] | None":
    """Returns the corpus as a dataset and as a stream of its rows, which knows where each stands in its file."""
    if not corpora:
        return None
    dataset = read_corpus(corpora[0], form=form, cache_dir=cache)
    return dataset, replace(stream_of(dataset, str(corpora[0]), form=form), place=partial(row_place, corpora[0], form))


def prepare_train(
    corpora: Corpora,
    streams: Sequence[TextStream],
    tokenizer: VanillaTransformerTokenizer,
    recipe: Recipe,
    directory: Path,
    say: Callable[[str], None],
) -> list[PreparedCorpus]:
    """Prepares each training corpus as tokens, which are kept in the directory."""
    if len(streams) == 1:
        return [_prepare(directory / "train", "train", streams[0], tokenizer, recipe, say)]
    return [
        _prepare(directory / f"train-{number}", f"train, {stream.name}", stream, tokenizer, recipe, say)
        for number, (corpus, stream) in enumerate(zip(corpora, streams, strict=True), start=1)
    ]


def _prepare(
    directory: Path,
    name: str,
    corpus: TextStream,
    tokenizer: VanillaTransformerTokenizer,
    recipe: Recipe,
    say: Callable[[str], None],
) -> PreparedCorpus:
    encoder, max_length = task_for(recipe).encoder(recipe), recipe.data.max_length
    prepared = prepare_corpus(corpus, tokenizer, encoder, max_length=max_length, directory=directory)
    say(f"{name}: {prepared.report.describe(corpus.form)}")
    return prepared


def _tokenizer(
    recipe: Recipe, run: RunDirectory, corpora: Sequence[TextStream], say: Callable[[str], None]
) -> tuple[VanillaTransformerTokenizer, list[TextStream]]:
    """Returns the run's tokenizer: the one it already has, the one the recipe names, or a new one.

    Learning one counts the rows, so the returned corpora know their number.
    """
    streams = list(corpora)
    there = run.tokenizer_config.exists()
    # Checkpoints belong to the present tokenizer; until there are some, a tokenizer named by the recipe is preferred.
    named = recipe.tokenizer.tokenizer is not None and not has_checkpoints(run.checkpoints)
    if there and not named and (recipe.tokenizer.tokenizer is not None or _vocabulary_is_of(streams, run)):
        tokenizer = load_own_tokenizer(run.path)
    elif recipe.tokenizer.tokenizer is not None:
        tokenizer = load_own_tokenizer(recipe.tokenizer.tokenizer)
        check_tokenizer(tokenizer, recipe.tokenizer.tokenizer, task_for(recipe).special_tokens)
        if not (there and _is_same(tokenizer, load_own_tokenizer(run.path))):
            save_tokenizer(tokenizer, run)
    else:
        run.tokenizer_config.unlink(missing_ok=True)
        counts, texts, sample = sample_rows(streams, MOST_ROWS_FOR_THE_VOCABULARY)
        stamped = [[stream.stamp, text] for stream, text in zip(streams, texts, strict=True)]
        streams = [replace(stream, rows=count) for stream, count in zip(streams, counts, strict=True)]
        tokenizer = learn_tokenizer(recipe, sum(counts), sample, say)
        run.prepared.mkdir(parents=True, exist_ok=True)
        atomic_write_text(run.vocabulary, json.dumps(stamped))
        save_tokenizer(tokenizer, run)
    check_vocab_size(tokenizer, recipe)
    return tokenizer, streams


def _is_same(one: VanillaTransformerTokenizer, other: VanillaTransformerTokenizer) -> bool:
    return one.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()


def _vocabulary_is_of(streams: Sequence[TextStream], run: RunDirectory) -> bool:
    """Tells whether to keep the present tokenizer: checkpoints use it, or it was learned from this very text."""
    if has_checkpoints(run.checkpoints):
        return True
    try:
        texts = json.loads(run.vocabulary.read_text(encoding="utf-8"))
        return len(texts) == len(streams) and all(
            stream.is_still(stamp, text) for stream, (stamp, text) in zip(streams, texts, strict=True)
        )
    except (OSError, ValueError, TypeError, LookupError):
        return False


def save_tokenizer(tokenizer: VanillaTransformerTokenizer, run: RunDirectory) -> None:
    """Writes whole files into the model directory; the file that marks them complete comes last."""
    remove_partial_files(run.path)
    with atomic_write_files(run.path, "tokenizer", last=run.tokenizer_config.name) as temporary:
        tokenizer.save_pretrained(temporary)
