"""Models, their configurations and their tokenizers, from a directory or the Hub."""

import fnmatch
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import vanilla_transformer.registration  # noqa: F401  the Auto classes have to know the model
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

# What holds a vocabulary: that of our tokenizer, and those of the classes that converted models keep.
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab-src.json", "sentencepiece.bpe.model", "spiece.model")
# What a tokenizer is loaded from, with those beside the vocabulary.
TOKENIZER_FILES = (
    *VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("source.spm", "target.spm", "target_vocab.json", "vocab-tgt.json", "merges.txt"),
)
# What a model is loaded from; logs, pictures, texts and translations stand beside it.
_MODEL_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "*.bin")


class UnusableModelError(ValueError):
    """There is a model whose files cannot be used."""


class ModelNotFoundError(OSError):
    """There is no model where one was asked for."""


def load_model(
    path: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads model and tokenizer from a directory or the Hub, in float32 on the best device there is unless told.

    Raises:
        ModelNotFoundError: There is no model of that name.
    """
    with _not_found(path, "config.json"):
        if Path(path, "generation_config.json").is_file():
            GenerationConfig.from_pretrained(path)  # One that cannot be read is left out by the model without a word.
        model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=dtype or torch.float32, trust_remote_code=False)
    return model.to(device or best_device()).eval(), load_tokenizer(path)


def load_config(path: str | Path) -> VanillaTransformerConfig:
    """Loads the configuration of a model from a directory or the Hub.

    Raises:
        ModelNotFoundError: There is no model of that name.
        ValueError: The model is of another type.
    """
    with _not_found(path, "config.json"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    if not isinstance(config, VanillaTransformerConfig):
        raise ValueError(f"{path} is a model of the type {config.model_type}, not vanilla_transformer.")
    return config


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model, or one on its own, from a directory or the Hub."""
    with _not_found(path, "tokenizer_config.json"):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        tokenizer("a")  # Some of what may be wrong in its files shows only now.
        return tokenizer


def load_own_tokenizer(path: str | Path) -> VanillaTransformerTokenizer:
    """Loads a tokenizer to train with, whatever class it was saved as, from a directory or the Hub."""
    with _not_found(path, "tokenizer.json"):
        tokenizer = VanillaTransformerTokenizer.from_pretrained(path)
        tokenizer("a")
        return tokenizer


def fingerprint(path: str | Path, model: PreTrainedModel) -> str:
    """What tells this model from any other: a hash of the files that it is loaded from, or its commit on the Hub."""
    if not Path(path).is_dir():
        return f"{path}@{model.config._commit_hash}"
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(Path(path).iterdir()):
        loaded = any(fnmatch.fnmatchcase(file.name, pattern) for pattern in (*_MODEL_FILES, *TOKENIZER_FILES))
        if loaded and file.is_file():
            with open(file, "rb") as content:
                digest.update(hashlib.file_digest(content, "blake2b").digest() + file.name.encode())
    return digest.hexdigest()


def best_device() -> str:
    """The name of the accelerator, where there is one that suits, and else of the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


@contextmanager
def _not_found(path: str | Path, file: str) -> Iterator[None]:
    """Says in one sentence that there is no model, before and in place of a search of the Hub that cannot succeed."""
    if Path(path).is_dir():
        if not Path(path, file).is_file():
            raise ModelNotFoundError(f"{path} is not a model directory: it has no {file}.")
    elif not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        raise ModelNotFoundError(f"There is no model directory {path}.")
    try:
        yield
    except ImportError:
        raise
    except BaseException as error:  # What the libraries raise for files that are damaged may be of any class.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if isinstance(error, OSError) and not Path(path).is_dir():
            sentence = f"There is no directory {path}, and the Hub gives no model of that name."
            raise ModelNotFoundError(sentence) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UnusableModelError(f"What is in {path} cannot be loaded, it is damaged or none: {reason}.") from error
