"""Inputs of a run: the corpora as text, the tokenizer, and the corpora as tokens."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_directory, atomic_write_text
from vanilla_transformer.data.corpus import corpus_languages, read_corpus
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.sources import refuse_pipes
from vanilla_transformer.data.token_corpus import PreparedCorpus, StoredCorpus
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import SpecialTokens, task_for, with_labels
from vanilla_transformer.training.checkpoints import has_checkpoints, remove_partial_files
from vanilla_transformer.training.mixed_corpus import mix
from vanilla_transformer.training.run_directory import RunDirectory
from vanilla_transformer.training.vocabulary import check_tokenizer, learn_tokenizer
from vanilla_transformer.translation.differences import difference_of_vocabularies
from vanilla_transformer.translation.loading import load_own_tokenizer, saved_config

_ROWS_AT_ONCE = 10_000
# The settings by which a vocabulary is learned.
_LEARNED_BY = ("task", "documents", "tokenizer_algorithm", "tokenizer_sides", "tokenizer_lowercase", "vocab_size")


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


def gather_inputs(recipe: Recipe, run: RunDirectory, say: Callable[[str], None]) -> Inputs:
    """Reads the corpora, learns or loads the tokenizer and prepares the tokens."""
    task = task_for(recipe)
    if not recipe.data.train:
        raise RecipeError(f"There is no training data: give the {task.form.unit} as --train.")
    cache, corpora = run.prepared / "text", {name: recipe.data.corpora(name) for name in ("train", "dev", "test")}
    refuse_pipes([corpus for several in corpora.values() for corpus in several])
    texts = {
        name: [read_corpus(corpus, form=task.form, cache_dir=cache) for corpus in several]
        for name, several in corpora.items()
    }
    train, dev, test = texts["train"], *(next(iter(texts[name]), None) for name in ("dev", "test"))
    recipe = with_labels(recipe, texts)
    if not has_checkpoints(run.checkpoints):
        for sentence in _warnings(texts, task.form.names, task.form.unit):
            say(sentence)
    tokenizer = _tokenizer(recipe, run, train, say)
    encoder = task.encoder(recipe)

    def prepared(place: str, name: str, text: Dataset) -> StoredCorpus:
        length, directory = recipe.data.max_length, run.prepared / place
        corpus = prepare_corpus(text, tokenizer, encoder, max_length=length, directory=directory)
        say(f"{name}: {corpus.report.describe(encoder.form)}")
        return corpus

    learned: PreparedCorpus
    if len(train) == 1:
        learned = prepared("train", "train", train[0])
    else:
        numbered = enumerate(zip(corpora["train"], train, strict=True), start=1)
        parts = [prepared(f"train-{number}", f"train, {corpus}", text) for number, (corpus, text) in numbered]
        learned = mix(corpora["train"], parts, recipe, say)
    return Inputs(
        recipe,
        tokenizer,
        learned,
        None if dev is None else prepared("dev", "dev", dev),
        dev_text=dev,
        test_text=test,
        languages=corpus_languages(corpora["train"][0], cache_dir=cache) if task.form.parallel else (None, None),
    )


def _warnings(texts: Mapping[str, Sequence[Dataset]], columns: Sequence[str], unit: str) -> Iterator[str]:
    """Warns of likely mistakes in the choice of corpora: rows to copy, and rows to be scored on that were learned."""
    for name, corpora in texts.items():
        if len(columns) == 2 and any(all(a == b for a, b in _rows(corpus, columns)) for corpus in corpora):
            yield f"Attention: both sides of {name} are the same text, so the model can only learn to copy."
    for name, others in (("dev", ["train"]), ("test", ["train", "dev"])):
        for corpus in texts[name]:
            rows = list(_rows(corpus, columns))
            for other in others:
                known = set(rows).intersection(row for text in texts[other] for row in _rows(text, columns))
                if known:
                    count = sum(row in known for row in rows)
                    yield (
                        f"Attention: {count:,} of the {len(rows):,} {unit} of {name} stand in {other} too, so scores "
                        "on them say little about new text."
                    )


def _rows(corpus: Dataset, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for table in corpus.with_format("arrow").iter(_ROWS_AT_ONCE):
        yield from zip(*(table[name].to_pylist() for name in columns), strict=True)


def _tokenizer(
    recipe: Recipe, run: RunDirectory, texts: Sequence[Dataset], say: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Returns the run's tokenizer: the one it already has, the one the recipe names, or a new one."""
    there = run.tokenizer_config.exists()
    learned_from = json.dumps([*(recipe[name] for name in _LEARNED_BY), *(text._fingerprint for text in texts)])
    # Checkpoints belong to the present tokenizer; until there are some, a tokenizer named by the recipe is preferred.
    begun, name = has_checkpoints(run.checkpoints), recipe.tokenizer.tokenizer
    is_of_text = run.vocabulary.is_file() and run.vocabulary.read_text(encoding="utf-8") == learned_from
    if there and (begun or (name is None and is_of_text)):
        tokenizer = load_own_tokenizer(run.path)
    elif name is not None:
        tokenizer, start = load_own_tokenizer(name), recipe.start.from_model
        config = VanillaTransformerConfig() if start is None else saved_config(start)
        check_tokenizer(tokenizer, name, SpecialTokens.for_models(task_for(recipe).auto_class), config)
        if not (there and difference_of_vocabularies(tokenizer, load_own_tokenizer(run.path)) is None):
            save_tokenizer(tokenizer, run)
    else:
        run.tokenizer_config.unlink(missing_ok=True)
        tokenizer = learn_tokenizer(recipe, texts, say)
        run.prepared.mkdir(parents=True, exist_ok=True)
        atomic_write_text(run.vocabulary, learned_from)
        save_tokenizer(tokenizer, run)
    wanted = recipe.tokenizer.vocab_size or len(tokenizer)
    # The weights of a model to start from may be for more entries than its tokenizer has.
    if wanted != len(tokenizer) and (recipe.start.from_model is None or wanted < len(tokenizer)):
        raise RecipeError(f"vocab_size is {wanted:,}, but the tokenizer has {len(tokenizer):,} entries: leave it out.")
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, run: RunDirectory) -> None:
    """Writes whole files into the model directory; the file that marks them complete comes last."""
    remove_partial_files(run.path)
    with atomic_directory(run.path, "tokenizer", last=run.tokenizer_config.name) as temporary:
        tokenizer.save_pretrained(temporary)
