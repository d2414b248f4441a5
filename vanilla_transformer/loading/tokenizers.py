"""Tokenizers from a directory or the Hub."""

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vanilla_transformer.errors import ModelError
from vanilla_transformer.loading.files import directory_of, from_hub, readable
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

# Vocabulary files: that of our tokenizer, and those of the tokenizer classes of converted models.
VOCABULARY_FILES = (
    *("tokenizer.json", "vocab.json", "vocab-src.json", "vocab.txt"),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)
# Files that a tokenizer is loaded from, including those beside the vocabulary, as patterns.
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("source.spm", "target.spm", "target_vocab.json", "vocab-tgt.json", "merges.txt"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
)
# What a tokenizer of any class is loaded from.
_TOKENIZER_PATTERNS = ("*.json", "*.jinja", "*.model", "*.spm", "*.txt")


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model, or one on its own, from a directory or the Hub."""
    directory = directory_of(path, "tokenizer_config.json", *_TOKENIZER_PATTERNS)
    if directory == Path(path).expanduser() and not any((directory / name).is_file() for name in VOCABULARY_FILES):
        raise ModelError(
            f"{path} has no vocabulary, none of {', '.join(VOCABULARY_FILES)}: save its tokenizer there. One that "
            "needs none, such as ByT5's, is not supported in a directory."
        )
    with readable(path, blame="its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        tokenizer("a")  # Some faults in its files show only now.
        return tokenizer


def load_own_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads a tokenizer for training: one with a `tokenizer.json` as this package's class, another as its own."""
    directory = Path(path).expanduser()
    directory = directory if directory.is_dir() else from_hub(str(path), _TOKENIZER_PATTERNS)
    if not (directory / "tokenizer.json").is_file():
        return load_tokenizer(path)
    with readable(path):
        tokenizer = VanillaTransformerTokenizer.from_pretrained(directory)
        tokenizer("a")
        return tokenizer
