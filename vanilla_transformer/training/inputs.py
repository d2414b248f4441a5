"""What a run learns from: corpora as text, the vocabulary (section 5.1), tokens, and the batches of each step."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import count
from pathlib import Path

import numpy as np
from datasets import Dataset, concatenate_datasets
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.data.batching import StepPlan, share
from vanilla_transformer.data.corpus import corpus_languages, fingerprint_settings, read_corpus
from vanilla_transformer.data.preparation import (
    PreparationReport,
    PreparedCorpus,
    Rows,
    StoredCorpus,
    prepare_corpus,
)
from vanilla_transformer.data.sources import BETWEEN_WORDS, refuse_pipes
from vanilla_transformer.errors import CorpusError, RecipeError, RunError, VocabularyError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.defaults import choose_vocab_size
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import Batch, RowRandom, task_for
from vanilla_transformer.tokenizer import lowercased, train_tokenizer
from vanilla_transformer.training.checkpoints import Progress, has_checkpoints
from vanilla_transformer.training.run_directory import RECIPE, RunDirectory
from vanilla_transformer.translation.loading import load_own_tokenizer, saved_config

_ROWS_AT_ONCE = 10_000
# Sub-words depend on counts: more sentences than this hardly change them.
MAX_ROWS_FOR_VOCABULARY = 1_000_000
# An epoch is planned in memory: about 30 bytes per pair, and 16 more if a share is drawn anew in each epoch.
MAX_PAIRS_IN_AN_EPOCH = 1_000_000_000
# Times that a pair is repeated on average.
MAX_REPEATS = 1000


@dataclass(frozen=True)
class Inputs:
    """Corpora as text and as tokens, None where there is none, and the two languages if known.

    `recipe` is the given one, completed by values that come from the text itself. A copy for another process, which
    pickle makes, opens the tokens by their names in the output directory, and has no text.
    """

    path: Path
    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    train: PreparedCorpus
    dev: PreparedCorpus | None
    dev_text: Dataset | None
    test_text: Dataset | None
    languages: tuple[str | None, str | None]

    def __reduce__(self) -> tuple[Callable[..., "Inputs"], tuple[Path, Recipe]]:
        return _open_inputs, (self.path, self.recipe)


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
    recipe = task.with_labels(recipe, texts)
    if not has_checkpoints(run.checkpoints):
        for sentence in _warnings(texts, task.form.names, task.form.unit):
            say(sentence)
    tokenizer = _tokenizer(recipe, run, train, say)
    encoder = task.encoder(recipe)

    def prepared(place: str, name: str, text: Dataset) -> StoredCorpus:
        length, directory = recipe.data.max_length, run.prepared / place
        corpus = prepare_corpus(text, tokenizer, encoder, max_length=length, directory=directory)
        say(f"{name}: {corpus.report.describe(task.form.unit)}")
        return corpus

    names = ["train"] if len(train) == 1 else [f"train, {corpus}" for corpus in corpora["train"]]
    parts = list(map(prepared, _places(recipe), names, train))
    learned = _together(recipe, parts)
    if isinstance(learned, MixedCorpus):
        for corpus, part, rows in zip(corpora["train"], parts, learned.shares, strict=True):
            say(
                f"An epoch of {len(learned):,} {task.form.unit} has {rows:,} of {corpus}, {rows / len(learned):.1%}: "
                f"each {'once' if rows == len(part) else f'{rows / len(part):.4g} times'}."
            )
    return Inputs(
        run.path,
        recipe,
        tokenizer,
        learned,
        None if dev is None else prepared("dev", "dev", dev),
        dev_text=dev,
        test_text=test,
        languages=corpus_languages(train[0]),
    )


def _open_inputs(path: Path, recipe: Recipe) -> Inputs:
    """Opens what the main process has gathered, without the text."""
    run = RunDirectory(path)
    if not (path / RECIPE).is_file():
        raise RunError(
            f"{path.absolute()} on {socket.gethostname()} is not the output directory of the main process: all "
            "processes need one on a disk that they share, and the same command."
        )
    learned = _together(recipe, [StoredCorpus(run.prepared / place) for place in _places(recipe)])
    dev = StoredCorpus(run.prepared / "dev") if recipe.data.dev else None
    return Inputs(path, recipe, load_own_tokenizer(path), learned, dev, None, None, (None, None))


def _places(recipe: Recipe) -> list[str]:
    """Returns the names of the prepared corpora to learn from."""
    number = len(recipe.data.corpora("train"))
    return ["train"] if number == 1 else [f"train-{one}" for one in range(1, number + 1)]


def _together(recipe: Recipe, parts: Sequence[StoredCorpus]) -> "StoredCorpus | MixedCorpus":
    if len(parts) == 1:
        return parts[0]
    weights = [corpus.weight for corpus in recipe.data.corpora("train") if corpus.weight is not None]
    return MixedCorpus(parts, weights or None, seed=recipe.optimization.seed)


def _warnings(texts: Mapping[str, Sequence[Dataset]], columns: Sequence[str], unit: str) -> Iterator[str]:
    """Warns of likely mistakes in the choice of corpora: rows to copy, and rows to be scored on that were learned."""
    for name, corpora in texts.items():
        if len(columns) == 2 and any(all(a == b for a, b in _rows(corpus, columns)) for corpus in corpora):
            yield f"Warning: both sides of {name} are the same text, so the model can only learn to copy."
    for name, others in (("dev", ["train"]), ("test", ["train", "dev"])):
        for corpus in texts[name]:
            rows = list(_rows(corpus, columns))
            for other in others:
                learned = (row for text in texts[other] for row in _rows(text, columns))
                known = set(rows).intersection(row for row in learned if all(map(str.strip, row)))
                if known:
                    count = sum(row in known for row in rows)
                    yield (
                        f"Warning: {count:,} of the {len(rows):,} {unit} of {name} stand in {other} too, so scores "
                        "on them say little about new text."
                    )


def _rows(corpus: Dataset, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for table in corpus.with_format("arrow").iter(_ROWS_AT_ONCE):
        yield from zip(*(table[name].to_pylist() for name in columns), strict=True)


def _tokenizer(
    recipe: Recipe, run: RunDirectory, texts: Sequence[Dataset], say: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Returns the run's tokenizer, to which its checkpoints belong; until there are some, it is made anew."""
    if not has_checkpoints(run.checkpoints):
        with atomic_directory(run.path, "tokenizer") as temporary:
            _first_tokenizer(recipe, texts, say).save_pretrained(temporary)
            if not (temporary / "tokenizer.json").exists():
                (run.path / "tokenizer.json").unlink(missing_ok=True)  # Of an earlier try.
    tokenizer = load_own_tokenizer(run.path)
    wanted = recipe.tokenizer.vocab_size or len(tokenizer)
    # The weights of a model to start from may be for more entries than its tokenizer has.
    if wanted != len(tokenizer) and (recipe.start.from_model is None or wanted < len(tokenizer)):
        raise RecipeError(f"vocab_size is {wanted:,}, but the tokenizer has {len(tokenizer):,} entries: leave it out.")
    return tokenizer


def _first_tokenizer(recipe: Recipe, texts: Sequence[Dataset], say: Callable[[str], None]) -> PreTrainedTokenizerBase:
    name, start = recipe.tokenizer.tokenizer, recipe.start.from_model
    if name is None:
        return learn_tokenizer(recipe, texts, say)
    tokenizer, config = load_own_tokenizer(name), VanillaTransformerConfig() if start is None else saved_config(start)
    check_tokenizer(tokenizer, name, task_for(recipe).special_tokens, config)
    return tokenizer


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase, name: str, special: Mapping[str, bool], model: PreTrainedConfig
) -> None:
    """Refuses a tokenizer that begins and ends texts differently from the model, which could then never stop."""
    names = ["pad_token_id", "bos_token_id", "eos_token_id"]
    if tokenizer.bos_token_id is None and not special["begins"]:
        names.remove("bos_token_id")  # As in Marian's tokenizers.
    wanted, found = ([getattr(one, name) for name in names] for one in (model, tokenizer))
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    expected = [*wanted[1:2] * special["begins"], *inner, *wanted[-1:] * special["ends"]]
    stands_right = set(wanted).isdisjoint(inner) and tokenizer("a")["input_ids"] == expected
    if found != wanted or not stands_right:
        frame = f"{'the start, ' * special['begins']}its pieces{' and the end' * special['ends']}"
        raise RecipeError(
            f"The tokenizer of {name} cannot be used for training: padding, start and end must have the ids "
            f"{', '.join(map(str, wanted))} (here {', '.join(map(str, found))}), and a text must become {frame}. "
            "Leave --tokenizer out to have one trained."
        )
    if special["mask_token"] and "<mask>" not in tokenizer.get_vocab():
        raise RecipeError(f"The tokenizer of {name} has no <mask>: leave --tokenizer out, and one is trained.")


def learn_tokenizer(
    recipe: Recipe, texts: Sequence[Dataset], say: Callable[[str], None]
) -> VanillaTransformerTokenizer:
    """Learns sub-words from an even sample of all rows, as many as suit them unless the recipe gives their number."""
    task = task_for(recipe)
    rows, stride = sum(map(len, texts)), 1
    while rows > MAX_ROWS_FOR_VOCABULARY * stride:
        stride *= 2
    whole = concatenate_datasets([text.select_columns(list(task.form.names)) for text in texts])
    sample = whole.select(range(0, rows, stride)) if stride > 1 else whole
    vocab_size, sentences = choose_vocab_size(recipe, task, rows)
    for sentence in sentences:
        say(sentence)
    if len(sample) < rows:
        say(f"The vocabulary is learned from {len(sample):,} of the {rows:,} {task.form.unit}, sampled evenly.")

    def learned(vocab_size: int) -> VanillaTransformerTokenizer:
        return train_tokenizer(
            _sentences(sample, recipe),
            vocab_size,
            algorithm=recipe.tokenizer.tokenizer_algorithm,
            lowercase=recipe.tokenizer.tokenizer_lowercase,
            **task.special_tokens,
        )

    try:
        return learned(vocab_size)
    except VocabularyError as error:
        if recipe.tokenizer.vocab_size is not None:
            raise
        available = error.available
    say(f"The text yields only {available:,} entries, so the vocabulary has that size.")
    return learned(available)


def _sentences(sample: Dataset, recipe: Recipe) -> Iterator[str]:
    """Yields the texts of a thousand rows column by column, then those of the next."""
    task, sides = task_for(recipe), recipe.tokenizer.tokenizer_sides
    columns = task.form.without_labels().names if sides == "both" else (sides,)
    for rows in sample.iter(1000):
        for name in columns:
            for text in rows[name]:
                text = text.replace(BETWEEN_WORDS, " ") if task.form.tagged else text
                yield lowercased(text) if recipe.tokenizer.tokenizer_lowercase and name != "target" else text


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


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One process's batches of a step.

    Attributes:
        epoch_done: Share of the epoch that is done after the step.
        items: Number of items that the step's loss is averaged over, in the batches of all processes.
    """

    epoch: int
    epoch_done: float
    batches: list[Batch]
    items: int


def local_steps(
    recipe: Recipe,
    corpus: PreparedCorpus,
    collate: Callable[[Rows, RowRandom], Batch],
    progress: Progress,
    *,
    rank: int = 0,
    processes: int = 1,
    pin: bool = False,
    joined_tokens: int = 0,
) -> Iterator[LocalStep]:
    """Yields the steps that follow, epoch after epoch, without end.

    Args:
        progress: What is done before the first of them.
        processes: Number of processes that share each step; this one is that of `rank`.
        joined_tokens: A step that would have at most so many tokens as one batch, padding included, is one batch.
    """
    done = progress.step_in_epoch
    for epoch in count(progress.epoch):
        drawn = corpus.of_epoch(epoch)
        plan = make_plan(drawn, recipe)
        steps = plan.epoch(epoch)
        for index in range(done, len(steps)):
            pieces = share(steps[index], rank, processes)
            together = np.concatenate(pieces)
            if joined_tokens and plan.real_and_all_tokens(together)[1] <= joined_tokens:
                pieces = [together]
            batches = [collate(drawn.rows(rows), RowRandom(plan.seed, epoch, rows)) for rows in pieces]
            batches = list(map(pinned, batches)) if pin else batches
            # An epoch's batches are views of one array: a name for one of them would keep the whole array.
            del pieces, together
            yield LocalStep(epoch, (index + 1) / len(steps), batches, steps[index].items)
        # For a large corpus two epochs do not fit in memory.
        del drawn, plan, steps
        done = 0


def pinned(batch: Batch) -> Batch:
    """Returns the batch in memory that an accelerator copies from while the processor continues."""
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def make_plan(corpus: PreparedCorpus, recipe: Recipe) -> StepPlan:
    """Returns the recipe's batches for a corpus."""
    return StepPlan(
        *corpus.lengths.values(),
        items=task_for(recipe).items,
        batch_tokens=recipe.optimization.batch_tokens,
        batches_per_step=recipe.optimization.batches_per_step,
        seed=recipe.optimization.seed,
    )
