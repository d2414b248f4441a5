"""Models, their configurations and their tokenizers, from a directory or the Hub."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from vanilla_transformer.errors import ModelError, RecipeError
from vanilla_transformer.graph.known import check_search
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.registration import is_known, model_class
from vanilla_transformer.translation.marian import MARIAN, from_marian

logger = transformers_logging.get_logger(__name__)

# Vocabulary files: that of our tokenizer, and those of the tokenizer classes of converted models.
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab-src.json", "sentencepiece.bpe.model", "spiece.model")
# Files that a tokenizer is loaded from, including those beside the vocabulary, as patterns.
TOKENIZER_FILES = (
    *VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("source.spm", "target.spm", "target_vocab.json", "vocab-tgt.json", "merges.txt"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
)
# Weights with their index; the first that there are count.
_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
# What a tokenizer of any class is loaded from.
_TOKENIZER_PATTERNS = ("*.json", "*.jinja", "*.model", "*.spm", "*.txt")


def load_model(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    translates: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads model and tokenizer from a directory or the Hub, by default in float32 on the best device available.

    Args:
        translates: Whether to refuse models of the package that do not translate.

    Raises:
        ModelError: There is no model of that name, or its files are damaged, or do not fit together.
    """
    path = os.fspath(path)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise RecipeError(f"--device {device} cannot be used here: {reason}") from error
    model = load_weights_and_config(path, dtype or torch.float32, translates=translates)
    tokenizer = load_tokenizer(path)
    if is_known(model.config) and model.config.is_encoder_decoder:
        problem = _search_problem(model.generation_config, model.config.vocab_size, len(tokenizer))
        if problem is not None:
            raise ModelError(f"{path} is not a usable model: {problem}.")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return move(model, device).eval(), tokenizer


def move(model: Any, device: str | torch.device) -> Any:
    """Moves a model, and ties its weights again: some kinds of device make a new weight wherever one is used."""
    model = model.to(device)
    model.tie_weights()
    return model


def _search_problem(settings: GenerationConfig, vocabulary: int, tokens: int) -> str | None:
    """Explains why a search with these settings would not start, not end or not be understood, or None."""
    if tokens > vocabulary:
        return f"its tokenizer has {tokens:,} entries and its embedding {vocabulary:,}"
    for name in ("decoder_start_token_id", "eos_token_id"):
        value = getattr(settings, name)
        ids = value if isinstance(value, list) else [value]
        if not ids or any(type(one) is not int or not 0 <= one < vocabulary for one in ids):
            return f"{name} in its generation_config.json must be an id below {vocabulary:,}, not {value!r}"
    limits = [getattr(settings, name, None) for name in ("max_length_beyond_source", "max_new_tokens", "max_length")]
    given = [limit for limit in limits if limit is not None]
    if not given or any(type(limit) is not int for limit in given):
        return "its generation_config.json gives no limit of length as a whole number: max_length_beyond_source"
    try:
        check_search(num_beams=settings.num_beams, length_penalty=settings.length_penalty)
    except RecipeError as error:
        return f"in its generation_config.json {str(error).rstrip('.')}"
    return None


def load_weights_and_config(path: str | Path, dtype: torch.dtype, *, translates: bool = True) -> PreTrainedModel:
    """Loads a model as `load_model` does, without its tokenizer; a Marian model becomes one of this package."""
    config = saved_config(path)
    one_stack = is_known(config) and not config.is_encoder_decoder
    if translates and one_stack:
        command = "evaluate" if "MaskedLM" in str(config.architectures) else "predict"
        command = "generate" if isinstance(config, VanillaTransformerDecoderConfig) else command
        raise ModelError(
            f"{path} is a model of the type {config.model_type}, which does not translate: give it to `{command}`."
        )
    if config.model_type == MARIAN:
        logger.warning_once(f"{path} is a Marian model: it is used as one of this package, with the same logits.")
        marian = _load_weights(path, config, torch.float32, MarianMTModel)
        assert isinstance(marian, MarianMTModel)
        converted: Any = from_marian(marian)
        return converted.to(dtype)
    return _load_weights(path, config, dtype, model_class(config) if one_stack else AutoModelForSeq2SeqLM)


def _load_weights(path: str | Path, config: PreTrainedConfig, dtype: torch.dtype, loader: Any) -> PreTrainedModel:
    """Loads the model of a configuration; refuses missing weights, surplus ones, other shapes and NaN."""
    ours = is_known(config)
    for name in ("pad_token_id", "decoder_start_token_id"):
        number = getattr(config, name, None)
        if ours and number is not None and not 0 <= number < config.vocab_size:
            raise ModelError(
                f"{path} is not a usable model: {name} {number} in its config.json is not an id of its "
                f"vocabulary of {config.vocab_size:,}."
            )
    for pattern in _WEIGHTS:
        directory = _directory(path, "config.json", "generation_config.json", pattern)
        if any(directory.glob(pattern)):
            break
    with _readable(path):
        if (directory / "generation_config.json").is_file():
            GenerationConfig.from_pretrained(directory)  # The model silently ignores one that cannot be read.
        model, report = load_reported(loader, directory, config, dtype)
    # Models of other types have meaningless surplus weights, such as tables of positions.
    unplaced = {"missing": report["missing_keys"], "left over": report["unexpected_keys"] if ours else ()}
    difference = "; ".join(
        f"{min(names)} {'and others are' if len(names) > 1 else 'is'} {place}"
        for place, names in unplaced.items()
        if names
    )
    for name, found, needed in sorted(report["mismatched_keys"]):
        difference = difference or f"{name} has the shape {tuple(found)} and not {tuple(needed)}"
    if difference:
        raise ModelError(f"{path} is not a usable model: its weights do not match its config.json: {difference}.")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not torch.stack(torch.aminmax(weight.detach())).isfinite().all():
            raise ModelError(f"{path} is not a usable model: its {name} holds NaN or infinity.")
    return model


def load_config(path: str | Path, *, its_weights: bool = True) -> Any:
    """Loads the configuration of a model of any family of the package from a directory or the Hub.

    Args:
        its_weights: Whether weights beside it must match it.

    Raises:
        ModelError: There is no model of that name, it is damaged or of another type, or its weights do not match it.
    """
    config = saved_config(path)
    if config.model_type == MARIAN:
        return load_weights_and_config(path, torch.float32).config
    if not is_known(config):
        raise ModelError(f"{path} is a model of the type {config.model_type}, not vanilla_transformer.")
    if its_weights and any(file for pattern in _WEIGHTS for file in Path(path).expanduser().glob(pattern)):
        _load_weights(path, config, torch.float32, model_class(config))
    return config


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model, or one on its own, from a directory or the Hub."""
    directory = _directory(path, "tokenizer_config.json", *_TOKENIZER_PATTERNS)
    if directory == Path(path).expanduser() and not any((directory / name).is_file() for name in VOCABULARIES):
        raise ModelError(f"{path} has no vocabulary: it has none of {', '.join(VOCABULARIES)}.")
    with _readable(path, blame="its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        tokenizer("a")  # Some faults in its files show only now.
        return tokenizer


def load_own_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads a tokenizer for training: one with a `tokenizer.json` as this package's class, another as its own."""
    directory = Path(path).expanduser()
    directory = directory if directory.is_dir() else _from_hub(str(path), _TOKENIZER_PATTERNS)
    if not (directory / "tokenizer.json").is_file():
        return load_tokenizer(path)
    with _readable(path):
        tokenizer = VanillaTransformerTokenizer.from_pretrained(directory)
        tokenizer("a")
        return tokenizer


def saved_config(path: str | Path) -> PreTrainedConfig:
    """Returns the configuration of a model in a directory or on the Hub."""
    directory = _directory(path, "config.json")
    with _readable(path, blame="config.json"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    attention = config._attn_implementation
    if attention not in (None, "eager", *ALL_ATTENTION_FUNCTIONS):
        raise ModelError(
            f"{path}: config.json asks for the attention {attention!r}, which may be any code: leave it out."
        )
    return config


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Turns off transformers' progress bars in its body."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_reported(
    loader: Any, path: str | Path, config: PreTrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, dict[str, set[Any]]]:
    """Loads a model with the library's report of weights that are missing, left over or of another shape.

    The library itself is silent about these: the caller reports them in a sentence.
    """
    usual = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with without_progress_bars():
            model, report = loader.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
            return model, report
    finally:
        transformers_logging.set_verbosity(usual)


def _directory(name: str | Path, needed: str, *others: str) -> Path:
    """Returns the directory of that name, or else that of a model of the Hub: its cache, if the Hub does not answer.

    It must have the file `needed`; `others` are patterns of the files to download besides.
    """
    directory = Path(name).expanduser()
    if not directory.is_dir():
        return _from_hub(str(name), (needed, *others))
    if not (directory / needed).is_file():
        if (directory / "recipe.yaml").is_file() and (directory / "checkpoints").is_dir():
            raise ModelError(
                f"{name} is an unfinished run: `vanilla-transformer train {directory / 'recipe.yaml'}` goes on with "
                "it, and with --finish makes a model of what is there."
            )
        raise ModelError(f"{name} is not a model directory: it has no {needed}.")
    return directory


def _from_hub(name: str, files: Sequence[str]) -> Path:
    owner, _, _ = name.partition("/")
    # It cannot be on the Hub, or looks like a local path.
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or owner.strip(".") == "":
        raise ModelError(f"There is no model directory {name}.")
    if Path(owner).is_dir():
        raise ModelError(f"There is no model directory {name}; the directory {owner} here hides the owner on the Hub.")
    try:
        return Path(snapshot_download(name, allow_patterns=[*files]))
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no directory {name}, and the Hub has no model of that name.") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(f"There is no directory {name}, and the Hub gave no model of that name: {reason}.") from error


@contextmanager
def _readable(path: str | Path, blame: str = "") -> Iterator[None]:
    """Reports in one sentence that the files of a model cannot be read; `blame` is the place of the mistake."""
    try:
        yield
    except (ImportError, ModelError):
        raise
    except BaseException as error:  # The libraries may raise any class for damaged files.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = _reason(Path(path), error)
        if blame and not reason.startswith(blame):
            reason = f"{blame}: {reason}"
        raise ModelError(f"{path} cannot be loaded: it is damaged or not a model: {reason}.") from error


def _reason(path: Path, error: BaseException) -> str:
    """Gives the reason in one line, without a library's advice to run unknown code."""
    if "weights_only" in str(error):
        pickles = [file.name for file in sorted(path.glob("*.bin"))]
        return (
            f"{', '.join(pickles) or 'its file of weights'} is a pickle with more than weights, which could "
            "run any code: ask for the model as safetensors"
        )
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
