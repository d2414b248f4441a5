"""What a run starts from: the corpora, the tokenizer and the corpora in tokens."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from vanilla_transformer.atomic_files import atomic_write_files, atomic_write_text
from vanilla_transformer.checkpointing.store import has_checkpoints, remove_partial_files
from vanilla_transformer.data.columns import BETWEEN_WORDS, TextForm
from vanilla_transformer.data.corpus import corpus_languages, open_corpus, read_corpus, row_place
from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.mixture import MixedCorpus
from vanilla_transformer.data.preparation import (
    PreparedCorpus,
    TextHash,
    has_equal_sides,
    is_same_text,
    prepare_corpus,
    text_hash,
)
from vanilla_transformer.data.sources import Corpora
from vanilla_transformer.data.streams import TextStream, sample_rows, stream_of
from vanilla_transformer.data.tables import Row
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import (
    VanillaTransformerTokenizer,
    count_long_words,
    describe_long_words,
)
from vanilla_transformer.recipe.defaults import choose_vocab_size
from vanilla_transformer.recipe.schema import Recipe, RecipeError, in_words
from vanilla_transformer.tasks import SpecialTokens, get_task
from vanilla_transformer.training.run_directory import OutputError, RunDirectory
from vanilla_transformer.translation.loading import load_own_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

# Sub-words are counts: more sentences than this change hardly any of them.
MOST_ROWS_FOR_THE_VOCABULARY = 1_000_000
# How to get a tokenizer with these special tokens.
_ADVICE = {SpecialTokens(): "`vanilla-transformer tokenizer train` makes one that does."}


@dataclass(frozen=True)
class Inputs:
    """Corpora as text and as tokens, None where there is none, and the two languages where they are known.

    `recipe` is what was asked for, with what the text itself decides of it.
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
    task = get_task(recipe.task)
    if not recipe.train:
        raise RecipeError(f"There is nothing to learn from: give the {task.form.unit} as --train.")
    corpora, cache = recipe.corpora("train"), run.prepared / "text"
    train = [open_corpus(corpus, form=task.form, cache_dir=cache) for corpus in corpora]
    held_out = {field: _read_held_out(recipe.corpora(field), task.form, cache) for field in ("dev", "test")}
    dev, test = ((None if one is None else one[0]) for one in held_out.values())
    streams = {field: [] if one is None else [one[1]] for field, one in held_out.items()}
    recipe = task.complete(recipe, {"train": train, **streams})
    tokenizer, train = _tokenizer(recipe, run, train, say)
    prepared = _prepare_all(corpora, train, tokenizer, recipe, run, say)
    prepared_dev = None if dev is None else _prepare("dev", "dev", streams["dev"][0], tokenizer, recipe, run, say)
    texts = {
        "train": prepared.texts,
        "dev": () if prepared_dev is None else prepared_dev.texts,
        "test": () if test is None else (text_hash(streams["test"][0]),),
    }
    for sentence in _doubts(texts):
        say(sentence)
    return Inputs(
        recipe,
        tokenizer,
        train=prepared,
        dev=prepared_dev,
        dev_text=dev,
        test_text=test,
        languages=corpus_languages(corpora[0], cache_dir=cache) if task.form.parallel else (None, None),
    )


def _doubts(texts: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """What looks like a mistake in the choice of corpora, by the hashes of their texts."""
    for name, hashes in texts.items():
        if any(map(has_equal_sides, hashes)):
            yield f"Attention: both sides of {name} are the same text, so there is nothing but copying to it."
    for name, others in (("dev", ["train"]), ("test", ["train", "dev"])):
        for other in others:
            if not set(texts[name]).isdisjoint(texts[other]):
                yield f"Attention: {name} is the same text as {other}: what is measured on it says little of new text."


def _read_held_out(corpora: Corpora, form: TextForm, cache: Path) -> "tuple[Dataset, TextStream] | None":
    """The corpus as a dataset and as a stream of its rows, which knows where in a file each stands."""
    if not corpora:
        return None
    dataset = read_corpus(corpora[0], form=form, cache_dir=cache)
    return dataset, replace(stream_of(dataset, str(corpora[0]), form=form), place=partial(row_place, corpora[0], form))


def _prepare_all(
    corpora: Corpora,
    streams: Sequence[TextStream],
    tokenizer: VanillaTransformerTokenizer,
    recipe: Recipe,
    run: RunDirectory,
    say: Callable[[str], None],
) -> PreparedCorpus:
    """The corpora to learn from as one, with the share of each in an epoch told."""
    if len(streams) == 1:
        return _prepare("train", "train", streams[0], tokenizer, recipe, run, say)
    parts = [
        _prepare(f"train-{number}", f"train, {stream.name}", stream, tokenizer, recipe, run, say)
        for number, stream in enumerate(streams, start=1)
    ]
    weights = [corpus.weight for corpus in corpora if corpus.weight is not None]
    mixed = MixedCorpus(parts, weights or None, seed=recipe.seed)
    for corpus, part, share in zip(corpora, parts, mixed.shares, strict=True):
        say(
            f"An epoch of {len(mixed):,} {streams[0].form.unit} has {share:,} of {corpus}, {share / len(mixed):.1%}: "
            f"each {'once' if share == len(part) else f'{share / len(part):.4g} times'}."
        )
    return mixed


def _prepare(
    directory: str,
    name: str,
    corpus: TextStream,
    tokenizer: VanillaTransformerTokenizer,
    recipe: Recipe,
    run: RunDirectory,
    say: Callable[[str], None],
) -> PreparedCorpus:
    prepared = prepare_corpus(
        corpus,
        tokenizer,
        get_task(recipe.task).encoder(recipe),
        max_length=recipe.max_length,
        directory=run.prepared / directory,
    )
    say(f"{name}: {prepared.report.describe(corpus.form)}")
    return prepared


def _tokenizer(
    recipe: Recipe, run: RunDirectory, corpora: Sequence[TextStream], say: Callable[[str], None]
) -> tuple[VanillaTransformerTokenizer, list[TextStream]]:
    """The run's tokenizer: the one that it has already, the one that the recipe names, or a new one.

    Learning one counts the rows, and the corpora that come back know their number.
    """
    streams = list(corpora)
    if run.tokenizer_config.exists() and (recipe.tokenizer is not None or _vocabulary_is_of(streams, run)):
        tokenizer = load_own_tokenizer(run.path)
    elif recipe.tokenizer is not None:
        tokenizer = load_own_tokenizer(recipe.tokenizer)
        _check_tokenizer(tokenizer, recipe.tokenizer, get_task(recipe.task).special_tokens)
        _save_tokenizer(tokenizer, run)
    else:
        run.tokenizer_config.unlink(missing_ok=True)
        hashes = [TextHash() for _ in streams]
        read = [_hashed(stream, text) for stream, text in zip(streams, hashes, strict=True)]
        counts, sample = sample_rows(read, MOST_ROWS_FOR_THE_VOCABULARY)
        origin = [[stream.stamp, text.hexdigest()] for stream, text in zip(streams, hashes, strict=True)]
        streams = [replace(stream, rows=count) for stream, count in zip(streams, counts, strict=True)]
        tokenizer = _learn_tokenizer(recipe, sum(counts), sample, say)
        run.prepared.mkdir(parents=True, exist_ok=True)
        atomic_write_text(run.vocabulary, json.dumps(origin))
        _save_tokenizer(tokenizer, run)
    if recipe.vocab_size not in (None, len(tokenizer)):
        raise RecipeError(
            f"vocab_size is {recipe.vocab_size:,}, but the tokenizer has {len(tokenizer):,} entries: leave it out."
        )
    return tokenizer, streams


def _vocabulary_is_of(streams: Sequence[TextStream], run: RunDirectory) -> bool:
    """Whether the tokenizer that is there may stay: weights go with it, or it was learned from this very text."""
    if has_checkpoints(run.checkpoints):
        return True
    try:
        origin = json.loads(run.vocabulary.read_text(encoding="utf-8"))
        return len(origin) == len(streams) and all(
            is_same_text(stream, stamp, text) for stream, (stamp, text) in zip(streams, origin, strict=True)
        )
    except (OSError, ValueError, TypeError):
        return False


def _hashed(stream: TextStream, text: TextHash) -> TextStream:
    """The same rows, hashed as they go by."""

    def tables() -> Iterator[pa.Table]:
        for table in stream.tables():
            text.update(table)
            yield table

    return replace(stream, tables=tables)


def _check_tokenizer(tokenizer: VanillaTransformerTokenizer, name: str, special: SpecialTokens) -> None:
    """Refuses a tokenizer that does not begin and end texts as the model will, of which some could never stop.

    Raises:
        RecipeError: The ids of padding, start and end are others, or these stand elsewhere than they are to.
    """
    model = VanillaTransformerConfig()
    wanted = [model.pad_token_id, model.bos_token_id, model.eos_token_id]
    found = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    expected = [*wanted[1:2] * special.begins, *inner, *wanted[2:] * special.ends]
    stands_right = set(wanted).isdisjoint(inner) and tokenizer("a")["input_ids"] == expected
    if found != wanted or not stands_right:
        places = [
            *(["the start must begin each text"] * special.begins),
            f"the end must {'' if special.ends else 'not '}end each sentence",
        ]
        raise RecipeError(
            f"The tokenizer of {name} cannot be trained with: padding, start and end must have the ids "
            f"{', '.join(map(str, wanted))}, here {', '.join(map(str, found))}, and {' and '.join(places)}. "
            f"{_ADVICE.get(special, 'Leave --tokenizer out, and one that does is trained.')}"
        )
    if special.mask_token and "<mask>" not in tokenizer.get_vocab():
        raise RecipeError(f"The tokenizer of {name} has no <mask>: leave --tokenizer out, and one is trained.")


def _learn_tokenizer(
    recipe: Recipe, rows: int, sample: Sequence[Row], say: Callable[[str], None]
) -> VanillaTransformerTokenizer:
    task = get_task(recipe.task)
    if not sample:
        raise CorpusError(f"{in_words(recipe.train)}: there are no {task.form.unit} in it")
    vocab_size, sentences = choose_vocab_size(recipe, task, rows)
    for sentence in sentences:
        say(sentence)
    if len(sample) < rows:
        unit = task.form.unit
        say(f"The vocabulary is learned from {len(sample):,} of the {rows:,} {unit}, taken from all along them.")
    if recipe.tokenizer_algorithm not in ("character", "presplit"):
        long_words = count_long_words(_sentences(sample, recipe))
        if long_words:
            say(describe_long_words(long_words))
    try:
        return _learn(recipe, sample, vocab_size)
    except ValueError as error:
        available = getattr(error, "available", None)
        if available is None or recipe.vocab_size is not None:
            raise
    say(f"The text gives no more than {available:,} entries, so the vocabulary has that size.")
    return _learn(recipe, sample, available)


def _learn(recipe: Recipe, sample: Sequence[Row], vocab_size: int) -> VanillaTransformerTokenizer:
    special, algorithm = asdict(get_task(recipe.task).special_tokens), recipe.tokenizer_algorithm
    return VanillaTransformerTokenizer.train(_sentences(sample, recipe), vocab_size, algorithm=algorithm, **special)


def _sentences(sample: Sequence[Row], recipe: Recipe) -> Iterator[str]:
    task = get_task(recipe.task)
    columns = [task.form.names.index(name) for name in task.vocabulary_columns(recipe)]
    for start in range(0, len(sample), 1000):
        for column in columns:
            for row in sample[start : start + 1000]:
                yield row[column].replace(BETWEEN_WORDS, " ") if task.form.tagged else row[column]


def _save_tokenizer(tokenizer: VanillaTransformerTokenizer, run: RunDirectory) -> None:
    """Puts whole files into the model directory, the one that says that all are there last."""
    remove_partial_files(run.path)
    try:
        with atomic_write_files(run.path, "tokenizer", last=run.tokenizer_config.name) as temporary:
            tokenizer.save_pretrained(temporary)
    except Exception as error:
        # The library that writes the file has no class for its errors.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        raise OutputError(
            f"The tokenizer cannot be written to {run.path} ({' '.join(str(error).split())}): when that is mended, "
            "give the same command again."
        ) from error
