"""The tokenizer of a run: that of a saved model, or one learned from the corpora (section 5.1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.data.sources import BETWEEN_WORDS
from vanilla_transformer.errors import SettingError
from vanilla_transformer.loading.models import saved_config
from vanilla_transformer.loading.tokenizers import load_own_tokenizer
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.tokenizer import lowercased, train_tokenizer
from vanilla_transformer.training.checkpoints import has_checkpoints
from vanilla_transformer.training.choices import choose_vocab_size
from vanilla_transformer.training.run_directory import RunDirectory

# Sub-words depend on counts: more sentences than this hardly change them.
MAX_ROWS_FOR_VOCABULARY = 1_000_000


def make_tokenizer(
    recipe: Recipe, run: RunDirectory, texts: Sequence[Dataset], report: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    """Returns the run's tokenizer, to which its checkpoints belong; until there are some, it is made anew."""
    if not has_checkpoints(run.checkpoints):
        with atomic_directory(run.path, "tokenizer") as temporary:
            _first_tokenizer(recipe, texts, report).save_pretrained(temporary)
            if not (temporary / "tokenizer.json").exists():
                (run.path / "tokenizer.json").unlink(missing_ok=True)  # Of an earlier try.
    tokenizer = load_own_tokenizer(run.path)
    wanted = recipe.tokenizer.vocab_size or len(tokenizer)
    # The weights of a model to start from may be for more entries than its tokenizer has.
    if wanted != len(tokenizer) and (recipe.start.from_model is None or wanted < len(tokenizer)):
        raise SettingError(
            f"vocab_size is {wanted:,}, but the tokenizer has {len(tokenizer):,} entries: leave it out."
        )
    return tokenizer


def _first_tokenizer(
    recipe: Recipe, texts: Sequence[Dataset], report: Callable[[str], None]
) -> PreTrainedTokenizerBase:
    name, start = recipe.tokenizer.tokenizer, recipe.start.from_model
    if name is None:
        return learn_tokenizer(recipe, texts, report)
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
        raise SettingError(
            f"The tokenizer of {name} cannot be used for training: padding, start and end must have the ids "
            f"{', '.join(map(str, wanted))} (here {', '.join(map(str, found))}), and a text must become {frame}. "
            "Leave --tokenizer out to have one trained."
        )
    if special["mask_token"] and "<mask>" not in tokenizer.get_vocab():
        raise SettingError(f"The tokenizer of {name} has no <mask>: leave --tokenizer out, and one is trained.")


def learn_tokenizer(
    recipe: Recipe, texts: Sequence[Dataset], report: Callable[[str], None]
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
        report(sentence)
    if len(sample) < rows:
        report(f"The vocabulary is learned from {len(sample):,} of the {rows:,} {task.form.unit}, sampled evenly.")
    tokenizer = train_tokenizer(
        _sentences(sample, recipe),
        vocab_size,
        algorithm=recipe.tokenizer.tokenizer_algorithm or "bpe",
        lowercase=recipe.tokenizer.tokenizer_lowercase,
        or_fewer=recipe.tokenizer.vocab_size is None,
        **task.special_tokens,
    )
    if len(tokenizer) < vocab_size:
        report(f"The text yields only {len(tokenizer):,} entries, so the vocabulary has that size.")
    return tokenizer


def _sentences(sample: Dataset, recipe: Recipe) -> Iterator[str]:
    """Yields the texts of a thousand rows column by column, then those of the next."""
    task, sides = task_for(recipe), recipe.tokenizer.tokenizer_sides
    columns = task.form.without_labels().names if sides in (None, "both") else (sides,)
    for rows in sample.iter(1000):
        for name in columns:
            for text in rows[name]:
                text = text.replace(BETWEEN_WORDS, " ") if task.form.tagged else text
                yield lowercased(text) if recipe.tokenizer.tokenizer_lowercase and name != "target" else text
