"""Section 5.1: the recipe's tokenizer, learned from a sample of its text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer.data.columns import BETWEEN_WORDS
from vanilla_transformer.errors import RecipeError, VocabularyError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.defaults import choose_vocab_size
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import SpecialTokens, task_for
from vanilla_transformer.tokenizer import lowercased

# Sub-words depend on counts: more sentences than this hardly change them.
MAX_ROWS_FOR_VOCABULARY = 1_000_000
# Advice on getting a tokenizer with these special tokens.
_ADVICE = {SpecialTokens(): "`vanilla-transformer tokenizer` makes one that can."}


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase, name: str, special: SpecialTokens, model: PreTrainedConfig
) -> None:
    """Refuses a tokenizer that begins and ends texts differently from the model, which could then never stop.

    Raises:
        RecipeError: The ids of padding, start and end differ, or these tokens stand elsewhere.
    """
    names = ["pad_token_id", "bos_token_id", "eos_token_id"]
    if tokenizer.bos_token_id is None and not special.begins:
        names.remove("bos_token_id")  # As in Marian's tokenizers.
    wanted, found = ([getattr(one, name) for name in names] for one in (model, tokenizer))
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    expected = [*wanted[1:2] * special.begins, *inner, *wanted[-1:] * special.ends]
    stands_right = set(wanted).isdisjoint(inner) and tokenizer("a")["input_ids"] == expected
    if found != wanted or not stands_right:
        places = [
            *(["the start must begin each text"] * special.begins),
            f"the end must {'' if special.ends else 'not '}end each sentence",
        ]
        raise RecipeError(
            f"The tokenizer of {name} cannot be used for training: padding, start and end must have the ids "
            f"{', '.join(map(str, wanted))} (here {', '.join(map(str, found))}), and {' and '.join(places)}. "
            f"{_ADVICE.get(special, 'Leave --tokenizer out to have one trained.')}"
        )
    if special.mask_token and "<mask>" not in tokenizer.get_vocab():
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
    try:
        return _learn(recipe, sample, vocab_size)
    except VocabularyError as error:
        if recipe.tokenizer.vocab_size is not None:
            raise
        available = error.available
    say(f"The text yields only {available:,} entries, so the vocabulary has that size.")
    return _learn(recipe, sample, available)


def _learn(recipe: Recipe, sample: Dataset, vocab_size: int) -> VanillaTransformerTokenizer:
    special = asdict(SpecialTokens.for_models(task_for(recipe).auto_class))
    algorithm = recipe.tokenizer.tokenizer_algorithm
    texts = _sentences(sample, recipe)
    lowercase = recipe.tokenizer.tokenizer_lowercase
    return VanillaTransformerTokenizer.train(texts, vocab_size, algorithm=algorithm, lowercase=lowercase, **special)


def _sentences(sample: Dataset, recipe: Recipe) -> Iterator[str]:
    """Yields the texts of a thousand rows column by column, then those of the next."""
    task, sides = task_for(recipe), recipe.tokenizer.tokenizer_sides
    columns = task.form.without_labels().names if sides == "both" else (sides,)
    for rows in sample.iter(1000):
        for name in columns:
            for text in rows[name]:
                text = text.replace(BETWEEN_WORDS, " ") if task.form.tagged else text
                yield lowercased(text) if recipe.tokenizer.tokenizer_lowercase and name != "target" else text
