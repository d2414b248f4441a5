"""Section 5.1: the recipe's tokenizer, learned from a sample of its text."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from vanilla_transformer.data.columns import BETWEEN_WORDS, Row
from vanilla_transformer.data.text_streams import TextStream
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.defaults import choose_vocab_size
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.tasks import SpecialTokens, task_for
from vanilla_transformer.tokenizer.learning import count_long_words, describe_long_words, lowercased

# Sub-words depend on counts: more sentences than this hardly change them.
MOST_ROWS_FOR_THE_VOCABULARY = 1_000_000
# Advice on getting a tokenizer with these special tokens.
_ADVICE = {SpecialTokens(): "`vanilla-transformer tokenizer` makes one that can."}
# Number of characters that a sentence lists.
_MOST_SHOWN = 10


def check_tokenizer(tokenizer: VanillaTransformerTokenizer, name: str, special: SpecialTokens) -> None:
    """Refuses a tokenizer that begins and ends texts differently from the model, which could then never stop.

    Raises:
        RecipeError: The ids of padding, start and end differ, or these tokens stand elsewhere.
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
            f"The tokenizer of {name} cannot be used for training: padding, start and end must have the ids "
            f"{', '.join(map(str, wanted))} (here {', '.join(map(str, found))}), and {' and '.join(places)}. "
            f"{_ADVICE.get(special, 'Leave --tokenizer out to have one trained.')}"
        )
    if special.mask_token and "<mask>" not in tokenizer.get_vocab():
        raise RecipeError(f"The tokenizer of {name} has no <mask>: leave --tokenizer out, and one is trained.")


def check_vocab_size(tokenizer: VanillaTransformerTokenizer, recipe: Recipe) -> None:
    """Refuses a recipe whose vocabulary size differs from its tokenizer's.

    Raises:
        RecipeError: The message gives both sizes.
    """
    wanted = recipe.tokenizer.vocab_size
    if wanted not in (None, len(tokenizer)):
        raise RecipeError(f"vocab_size is {wanted:,}, but the tokenizer has {len(tokenizer):,} entries: leave it out.")


def learn_tokenizer(
    recipe: Recipe, rows: int, sample: Sequence[Row], say: Callable[[str], None]
) -> VanillaTransformerTokenizer:
    """Learns sub-words from a sample of all rows, as many as suit it unless the recipe gives their number."""
    task = task_for(recipe)
    if not sample:
        raise CorpusError(f"there are no {task.form.unit} in {in_words(recipe.data.train)}")
    vocab_size, sentences = choose_vocab_size(recipe, task, rows)
    for sentence in sentences:
        say(sentence)
    if len(sample) < rows:
        unit = task.form.unit
        say(f"The vocabulary is learned from {len(sample):,} of the {rows:,} {unit}, sampled evenly.")
    if recipe.tokenizer.tokenizer_algorithm not in ("character", "presplit"):
        long_words = count_long_words(_sentences(sample, recipe))
        if long_words:
            say(describe_long_words(long_words))
    try:
        return _learn(recipe, sample, vocab_size)
    except ValueError as error:
        available = getattr(error, "available", None)
        if available is None or recipe.tokenizer.vocab_size is not None:
            raise
    say(f"The text yields only {available:,} entries, so the vocabulary has that size.")
    return _learn(recipe, sample, available)


def _learn(recipe: Recipe, sample: Sequence[Row], vocab_size: int) -> VanillaTransformerTokenizer:
    special, algorithm = asdict(task_for(recipe).special_tokens), recipe.tokenizer.tokenizer_algorithm
    texts = _sentences(sample, recipe)
    lowercase = recipe.tokenizer.tokenizer_lowercase
    return VanillaTransformerTokenizer.train(texts, vocab_size, algorithm=algorithm, lowercase=lowercase, **special)


def _sentences(sample: Sequence[Row], recipe: Recipe) -> Iterator[str]:
    task = task_for(recipe)
    columns = [(task.form.names.index(name), name) for name in task.vocabulary_columns(recipe)]
    for start in range(0, len(sample), 1000):
        for column, name in columns:
            for row in sample[start : start + 1000]:
                text = row[column].replace(BETWEEN_WORDS, " ") if task.form.tagged else row[column]
                yield lowercased(text) if recipe.tokenizer.tokenizer_lowercase and name != "target" else text


def describe_unseen_characters(
    recipe: Recipe, train: Iterable[TextStream], name: str, others: Iterable[TextStream]
) -> str | None:
    """Describes characters of another text that never occur in `train`, with their counts; None if there are none."""
    columns = task_for(recipe).vocabulary_columns(recipe)
    known = {character for text in _texts(train, columns) for character in text}
    counts = Counter(character for text in _texts(others, columns) for character in text if character not in known)
    if not counts:
        return None
    shown = [f"{character!r} {count:,}" for character, count in counts.most_common(_MOST_SHOWN)]
    more = ["..."] * (len(counts) > _MOST_SHOWN)
    characters = "character" if len(counts) == 1 else "characters"
    return (
        f"{name} has {len(counts):,} {characters} that never occur in train, {counts.total():,} in all, so the "
        f"model cannot know them: {', '.join([*shown, *more])}"
    )


def _texts(streams: Iterable[TextStream], columns: Sequence[str]) -> Iterator[str]:
    for stream in streams:
        for table in stream.tables():
            for column in columns:
                yield from table.column(column).to_pylist()
