"""What a run starts from: the corpora, the tokenizer and the corpora in tokens."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from vanilla_transformer.atomic_files import atomic_write_files, atomic_write_text
from vanilla_transformer.checkpointing.store import has_checkpoints, remove_partial_files
from vanilla_transformer.data.corpus import corpus_languages, open_corpus, read_corpus
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
from vanilla_transformer.data.streams import PairStream, sample_pairs
from vanilla_transformer.data.tables import Pair
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import (
    VanillaTransformerTokenizer,
    count_long_words,
    describe_long_words,
)
from vanilla_transformer.recipe.defaults import choose_vocab_size
from vanilla_transformer.recipe.schema import Recipe, RecipeError, in_words
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.run_directory import OutputError, RunDirectory
from vanilla_transformer.translation.loading import load_own_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

# Sub-words are counts: more sentences than this change hardly any of them.
MOST_PAIRS_FOR_THE_VOCABULARY = 1_000_000


@dataclass(frozen=True)
class Inputs:
    """Corpora as text and as tokens, None where there is none, and the two languages where they are known."""

    tokenizer: VanillaTransformerTokenizer
    train: PreparedCorpus
    dev: PreparedCorpus | None
    dev_text: "Dataset | None"
    test_text: "Dataset | None"
    languages: tuple[str | None, str | None]


def gather_inputs(recipe: Recipe, run: RunDirectory, say: Callable[[str], None]) -> Inputs:
    """Reads the corpora, learns or loads the tokenizer and prepares the tokens."""
    if not recipe.train:
        raise RecipeError("There is nothing to learn from: give the pairs of text as --train.")
    corpora, cache = recipe.corpora("train"), run.prepared / "text"
    train = [open_corpus(corpus, cache_dir=cache) for corpus in corpora]
    dev, test = (_read_held_out(recipe.corpora(field), cache) for field in ("dev", "test"))
    tokenizer, train = _tokenizer(recipe, run, train, say)
    prepared = _prepare_all(corpora, train, tokenizer, recipe, run, say)
    prepared_dev = None if dev is None else _prepare("dev", "dev", dev, tokenizer, recipe, run, say)
    texts = {
        "train": prepared.texts,
        "dev": () if prepared_dev is None else prepared_dev.texts,
        "test": () if test is None else (text_hash(test),),
    }
    for sentence in _doubts(texts):
        say(sentence)
    return Inputs(
        tokenizer,
        train=prepared,
        dev=prepared_dev,
        dev_text=dev,
        test_text=test,
        languages=corpus_languages(corpora[0], cache_dir=cache),
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


def _read_held_out(corpora: Corpora, cache: Path) -> "Dataset | None":
    return read_corpus(corpora[0], cache_dir=cache) if corpora else None


def _prepare_all(
    corpora: Corpora,
    streams: Sequence[PairStream],
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
            f"An epoch of {len(mixed):,} pairs has {share:,} of {corpus}, {share / len(mixed):.1%}: "
            f"each {'once' if share == len(part) else f'{share / len(part):.4g} times'}."
        )
    return mixed


def _prepare(
    directory: str,
    name: str,
    corpus: "PairStream | Dataset",
    tokenizer: VanillaTransformerTokenizer,
    recipe: Recipe,
    run: RunDirectory,
    say: Callable[[str], None],
) -> PreparedCorpus:
    prepared = prepare_corpus(
        corpus,
        tokenizer,
        get_task(recipe.task),
        max_length=recipe.max_length,
        directory=run.prepared / directory,
    )
    say(f"{name}: {prepared.report}")
    return prepared


def _tokenizer(
    recipe: Recipe, run: RunDirectory, corpora: Sequence[PairStream], say: Callable[[str], None]
) -> tuple[VanillaTransformerTokenizer, list[PairStream]]:
    """The run's tokenizer: the one that it has already, the one that the recipe names, or a new one.

    Learning one counts the pairs, and the corpora that come back know their number.
    """
    streams = list(corpora)
    if run.tokenizer_config.exists() and (recipe.tokenizer is not None or _vocabulary_is_of(streams, run)):
        tokenizer = load_own_tokenizer(run.path)
    elif recipe.tokenizer is not None:
        tokenizer = load_own_tokenizer(recipe.tokenizer)
        _check_tokenizer(tokenizer, recipe.tokenizer)
        _save_tokenizer(tokenizer, run)
    else:
        run.tokenizer_config.unlink(missing_ok=True)
        hashes = [TextHash() for _ in streams]
        read = [_hashed(stream, text) for stream, text in zip(streams, hashes, strict=True)]
        counts, sample = sample_pairs(read, MOST_PAIRS_FOR_THE_VOCABULARY)
        origin = [[stream.stamp, text.hexdigest()] for stream, text in zip(streams, hashes, strict=True)]
        streams = [replace(stream, pairs=count) for stream, count in zip(streams, counts, strict=True)]
        tokenizer = _learn_tokenizer(recipe, sum(counts), sample, say)
        run.prepared.mkdir(parents=True, exist_ok=True)
        atomic_write_text(run.vocabulary, json.dumps(origin))
        _save_tokenizer(tokenizer, run)
    if recipe.vocab_size not in (None, len(tokenizer)):
        raise RecipeError(
            f"vocab_size is {recipe.vocab_size:,}, but the tokenizer has {len(tokenizer):,} entries: leave it out."
        )
    return tokenizer, streams


def _vocabulary_is_of(streams: Sequence[PairStream], run: RunDirectory) -> bool:
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


def _hashed(stream: PairStream, text: TextHash) -> PairStream:
    """The same pairs, hashed as they go by."""

    def tables() -> Iterator[pa.Table]:
        for table in stream.tables():
            text.update(table)
            yield table

    return replace(stream, tables=tables)


def _check_tokenizer(tokenizer: VanillaTransformerTokenizer, name: str) -> None:
    """Refuses a tokenizer that does not begin and end sentences as the model will: it could never stop.

    Raises:
        RecipeError: The ids of padding, start and end are others, or the end does not stand at the end alone.
    """
    model = VanillaTransformerConfig()
    wanted = [model.pad_token_id, model.bos_token_id, model.eos_token_id]
    found = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
    ids = tokenizer("a")["input_ids"]
    if found != wanted or not set(wanted).isdisjoint(ids[:-1]) or ids[-1:] != wanted[-1:]:
        raise RecipeError(
            f"The tokenizer of {name} cannot be trained with: padding, start and end must have the ids "
            f"{', '.join(map(str, wanted))}, here {', '.join(map(str, found))}, and the end must end each sentence. "
            "`vanilla-transformer tokenizer train` makes one that does."
        )


def _learn_tokenizer(
    recipe: Recipe, pairs: int, sample: Sequence[Pair], say: Callable[[str], None]
) -> VanillaTransformerTokenizer:
    if not sample:
        raise CorpusError(f"{in_words(recipe.train)}: there are no pairs in it")
    vocab_size, sentences = choose_vocab_size(recipe, pairs)
    for sentence in sentences:
        say(sentence)
    if len(sample) < pairs:
        say(f"The vocabulary is learned from {len(sample):,} of the {pairs:,} pairs, taken from all along them.")
    if recipe.tokenizer_algorithm not in ("character", "presplit"):
        long_words = count_long_words(_sentences(sample, recipe.tokenizer_sides))
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


def _learn(recipe: Recipe, sample: Sequence[Pair], vocab_size: int) -> VanillaTransformerTokenizer:
    sentences = _sentences(sample, recipe.tokenizer_sides)
    return VanillaTransformerTokenizer.train(sentences, vocab_size, algorithm=recipe.tokenizer_algorithm)


def _sentences(sample: Sequence[Pair], sides: str) -> Iterator[str]:
    columns = {"both": (0, 1), "source": (0,), "target": (1,)}[sides]
    for start in range(0, len(sample), 1000):
        for column in columns:
            yield from (pair[column] for pair in sample[start : start + 1000])


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
