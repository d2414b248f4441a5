"""Models and their configurations, from a directory or the Hub."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging

from vanilla_transformer.errors import ModelError, SettingError
from vanilla_transformer.graph.settings import LENGTH_LIMITS, check_search
from vanilla_transformer.graph.transformer import SCALES
from vanilla_transformer.loading.files import directory_of, readable
from vanilla_transformer.loading.marian import MARIAN, from_marian
from vanilla_transformer.loading.tokenizers import load_tokenizer
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from vanilla_transformer.registration import is_known, model_class

logger = transformers_logging.get_logger(__name__)

# Files of weights and their index, in order of preference.
_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")


def load_model(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    translates: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads model and tokenizer from a directory or the Hub, by default in float32 on the best device available.

    Args:
        translates: Whether to reject models of the package that do not translate.

    Raises:
        ModelError: There is no model of that name, its files are damaged, or they do not match.
    """
    path = os.fspath(path)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise SettingError(f"--device {device} cannot be used here: {reason}") from error
    model = load_weights_and_config(path, dtype or torch.float32, translates=translates)
    tokenizer = load_tokenizer(path)
    if is_known(model.config) and model.config.is_encoder_decoder:
        tokens = max(tokenizer.get_vocab().values()) + 1
        problem = _search_problem(model.generation_config, model.config.vocab_size, tokens)
        if problem is not None:
            raise ModelError(f"{path} is not a usable model: {problem}.")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return move(model, device).eval(), tokenizer


def move(model: Any, device: str | torch.device) -> Any:
    """Moves a model and ties its weights again, because some types of devices copy a shared weight for each use."""
    model = model.to(device)
    model.tie_weights()
    return model


def _search_problem(settings: GenerationConfig, vocabulary: int, tokens: int) -> str | None:
    """Returns why a search with these settings would fail or never end; None if there is no problem."""
    if tokens > vocabulary:
        return f"its tokenizer has {tokens:,} tokens, but its embedding has {vocabulary:,}"
    for name in ("decoder_start_token_id", "eos_token_id"):
        value = getattr(settings, name)
        ids = value if isinstance(value, list) else [value]
        if not ids or any(type(one) is not int or not 0 <= one < vocabulary for one in ids):
            return f"{name} in its generation_config.json must be an id below {vocabulary:,}, not {value!r}"
    limits = [getattr(settings, name, None) for name in LENGTH_LIMITS]
    given = [limit for limit in limits if limit is not None]
    if not given or any(type(limit) is not int for limit in given):
        return "its generation_config.json limits the length by no whole number, such as max_length_beyond_source"
    try:
        check_search(num_beams=settings.num_beams, length_penalty=settings.length_penalty)
    except SettingError as error:
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
    """Loads the model of a configuration; rejects missing weights, surplus weights, other shapes and NaN."""
    ours = is_known(config)
    for name in ("pad_token_id", "decoder_start_token_id"):
        number = getattr(config, name, None)
        if ours and number is not None and not 0 <= number < config.vocab_size:
            raise ModelError(
                f"{path} is not a usable model: {name} {number} in its config.json is not an id of its "
                f"vocabulary of {config.vocab_size:,}."
            )
    for pattern in _WEIGHTS:
        directory = directory_of(path, "config.json", "generation_config.json", pattern)
        if any(directory.glob(pattern)):
            break
    with readable(path):
        if (directory / "generation_config.json").is_file():
            GenerationConfig.from_pretrained(directory)  # The model silently ignores a damaged file.
        model, report = load_reported(loader, directory, config, dtype)
    problems = [
        *(f"{name} is missing" for name in sorted(report["missing_keys"])),
        # In models of other types, surplus weights have no effect, such as tables of positions.
        *(f"{name} is left over" for name in sorted(report["unexpected_keys"]) if ours),
        *(f"{name} is {tuple(one)} and not {tuple(other)}" for name, one, other in sorted(report["mismatched_keys"])),
    ]
    if any(name.endswith(SCALES) for name in report["unexpected_keys"]):
        raise ModelError(
            f"{path} contains weights in 8 bits for ONNX Runtime. Only `translate` and `Translator` can use it, with "
            "the precision auto or int8. For everything else, use the model that was exported."
        )
    if problems:
        difference = problems[0] + (", and others do not match either" if len(problems) > 1 else "")
        raise ModelError(f"{path} is not a usable model: its weights do not match its config.json: {difference}.")
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not torch.stack(torch.aminmax(weight.detach())).isfinite().all():
            raise ModelError(f"{path} is not a usable model: its {name} holds NaN or infinity.")
    return model


def load_config(path: str | Path, *, its_weights: bool = True) -> Any:
    """Loads the configuration of a model of any type of the package, from a directory or the Hub.

    Args:
        its_weights: Whether the weights in the same directory must match the configuration.

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


def saved_config(path: str | Path) -> PreTrainedConfig:
    """Returns the configuration of a model in a directory or on the Hub."""
    directory = directory_of(path, "config.json")
    with readable(path, blame="config.json"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    attention = config._attn_implementation
    if attention not in (None, "eager", *ALL_ATTENTION_FUNCTIONS):
        raise ModelError(
            f"{path}: config.json requests the attention {attention!r}, which could run any code: remove it."
        )
    return config


@contextmanager
def quiet_library() -> Iterator[None]:
    """Turns off transformers' progress bars and warnings in its body."""
    shown, usual = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(usual)
        if shown:
            transformers_logging.enable_progress_bar()


def load_reported(
    loader: Any, path: str | Path, config: PreTrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, dict[str, set[Any]]]:
    """Loads a model with the library's report of weights that are missing, left over or of another shape.

    The library itself is silent about these: the caller reports them in a sentence.
    """
    with quiet_library():
        model, report = loader.from_pretrained(
            directory_of(path, "config.json", *_WEIGHTS),
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    return model, report
