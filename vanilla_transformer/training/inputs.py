"""What a run starts from: the corpora, the tokenizer and the corpora in tokens."""

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vanilla_transformer.data.corpus import corpus_languages, read_corpus
from vanilla_transformer.data.preparation import PreparedCorpus, prepare_corpus
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.training.checkpoints import PARTIAL, remove_leftovers
from vanilla_transformer.training.choices import choose_vocab_size
from vanilla_transformer.training.directory import RunDirectory
from vanilla_transformer.training.recipe import Recipe, RecipeError

if TYPE_CHECKING:
    from datasets import Dataset

# Sub-words are counts: more sentences than this change hardly any of them.
MOST_PAIRS_FOR_THE_VOCABULARY = 1_000_000


@dataclass(frozen=True)
class Inputs:
    """Corpora as text and as tokens, None where there is none, and the two languages where they are known."""

    recipe: Recipe
    tokenizer: VanillaTransformerTokenizer
    train: PreparedCorpus
    dev: PreparedCorpus | None
    dev_text: "Dataset | None"
    test_text: "Dataset | None"
    languages: tuple[str | None, str | None]


def gather_inputs(recipe: Recipe, run: RunDirectory, say: Callable[[str], None]) -> Inputs:
    """Reads the corpora, learns or loads the tokenizer and prepares the tokens; the recipe gets its vocabulary."""
    if not recipe.train:
        raise RecipeError("There is nothing to learn from: give the pairs of text as --train.")
    train = read_corpus(recipe.train, **_reading(recipe, recipe.train, run))
    dev, test = (
        read_corpus(source, **_reading(recipe, source, run)) if source else None
        for source in (recipe.dev, recipe.test)
    )
    recipe, tokenizer = _tokenizer(recipe, run, train, say)
    return Inputs(
        recipe,
        tokenizer,
        train=_prepare("train", train, tokenizer, recipe, run, say),
        dev=None if dev is None else _prepare("dev", dev, tokenizer, recipe, run, say),
        dev_text=dev,
        test_text=test,
        languages=corpus_languages(recipe.train, **_reading(recipe, recipe.train, run)),
    )


def _reading(recipe: Recipe, source: Sequence[str], run: RunDirectory) -> dict[str, Any]:
    """Where and how a corpus is read; columns are named in tables alone, and `dev` may be two files beside a table."""
    columns = {"source_column": recipe.source_column, "target_column": recipe.target_column}
    beside_a_table = len(source) == 2 and len(recipe.train) == 1
    return {"cache_dir": run.prepared / "text", **({} if beside_a_table else columns)}


def _prepare(
    name: str,
    corpus: "Dataset",
    tokenizer: VanillaTransformerTokenizer,
    recipe: Recipe,
    run: RunDirectory,
    say: Callable[[str], None],
) -> PreparedCorpus:
    directory = run.prepared / name
    prepared = prepare_corpus(corpus, tokenizer, max_length=recipe.max_length, directory=directory)
    say(f"{name}: {prepared.report}")
    return prepared


def _tokenizer(
    recipe: Recipe, run: RunDirectory, corpus: "Dataset", say: Callable[[str], None]
) -> tuple[Recipe, VanillaTransformerTokenizer]:
    """The run's tokenizer: the one that it has already, the one that the recipe names, or a new one."""
    if run.tokenizer_config.exists():
        tokenizer = VanillaTransformerTokenizer.from_pretrained(run.path)
    else:
        if recipe.tokenizer is not None:
            tokenizer = VanillaTransformerTokenizer.from_pretrained(recipe.tokenizer)
        else:
            tokenizer = _learn_tokenizer(recipe, corpus, say)
        _save_tokenizer(tokenizer, run)
    if recipe.vocab_size not in (None, len(tokenizer)):
        raise RecipeError(
            f"vocab_size is {recipe.vocab_size:,}, but the tokenizer has {len(tokenizer):,} types: leave it out."
        )
    return dataclasses.replace(recipe, vocab_size=len(tokenizer)), tokenizer


def _learn_tokenizer(recipe: Recipe, corpus: "Dataset", say: Callable[[str], None]) -> VanillaTransformerTokenizer:
    chosen, sentences = choose_vocab_size(recipe, len(corpus))
    for sentence in sentences:
        say(sentence)
    assert chosen.vocab_size is not None
    try:
        return _learn(chosen, corpus, chosen.vocab_size)
    except ValueError as error:
        available = getattr(error, "available", None)
        if available is None or recipe.vocab_size is not None:
            raise
    say(f"The text gives no more than {available:,} types, so the vocabulary has that size.")
    return _learn(chosen, corpus, available)


def _learn(recipe: Recipe, corpus: "Dataset", vocab_size: int) -> VanillaTransformerTokenizer:
    sentences = _sentences(corpus, recipe.tokenizer_sides)
    return VanillaTransformerTokenizer.train(sentences, vocab_size, algorithm=recipe.tokenizer_algorithm)


def _sentences(corpus: "Dataset", sides: str) -> Iterator[str]:
    columns = ("source", "target") if sides == "both" else (sides,)
    stride = math.ceil(len(corpus) / MOST_PAIRS_FOR_THE_VOCABULARY)
    sample = corpus if stride == 1 else corpus.select(range(0, len(corpus), stride))
    for batch in sample.iter(batch_size=1000):
        for column in columns:
            yield from batch[column]


def _save_tokenizer(tokenizer: VanillaTransformerTokenizer, run: RunDirectory) -> None:
    """Puts whole files into the model directory, the one that says that all are there last."""
    remove_leftovers(run.path)
    partial = run.path / f"{PARTIAL}tokenizer"
    tokenizer.save_pretrained(partial)
    for file in sorted(partial.iterdir(), key=lambda file: file.name == run.tokenizer_config.name):
        file.rename(run.path / file.name)
    shutil.rmtree(partial)
