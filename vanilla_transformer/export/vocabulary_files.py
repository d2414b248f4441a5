"""A tokenizer's vocabulary by id, and its files, for systems without a tokenizer of their own."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.errors import ModelError


def vocabularies(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> tuple[list[str], list[str]]:
    """Returns source and target vocabulary in the order of the ids; unused ids get a placeholder.

    Raises:
        ModelError: The tokenizer's vocabulary is larger than the model's.
    """
    source = {index: token for token, index in tokenizer.get_vocab().items()}
    target = dict(source)
    # A Marian tokenizer may have a target vocabulary of its own, under this name.
    target.update(getattr(tokenizer, "decoder", None) or {} if not tokenizer.is_fast else {})
    return _by_id(source, vocab_size), _by_id(target, vocab_size)


def _by_id(tokens: dict[int, str], vocab_size: int) -> list[str]:
    if tokens and max(tokens) >= vocab_size:
        raise ModelError(
            f"The tokenizer has {max(tokens) + 1} vocabulary entries but the model {vocab_size}: they do not match."
        )
    return [tokens.get(index, f"<unused-{index}>") for index in range(vocab_size)]


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, output: Path) -> bool:
    """Writes the tokenizer's files; returns True if one is `tokenizer.json`, which the package `tokenizers` reads."""
    tokenizer.save_pretrained(output)
    return (output / "tokenizer.json").is_file()
