"""Converts model directories: weights, generation config and tokenizer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.marian import to_marian
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.translation.loading import load_tokenizer, load_weights_and_config, saved_config
from vanilla_transformer.translation.marian import MARIAN, fresh

OURS = VanillaTransformerConfig.model_type

# Settings of `generate` that only our models know.
_OWN_SETTINGS = ("length_penalty_type", "max_length_beyond_source")


@dataclass(frozen=True)
class Converted:
    """A model of another type with the same logits, its tokenizer, and remarks for the user."""

    model: Any  # A PreTrainedModel that is a GenerationMixin as well: Python has no type for both.
    tokenizer: Any | None
    remarks: list[str] = field(default_factory=list)

    def save(self, output: Path) -> None:
        """Writes the model directory."""
        self.model.save_pretrained(output)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(output)


def convert(source: str | Path) -> Converted:
    """Converts a Marian model to ours, or our model to Marian.

    Raises:
        ModelError: There is no model of that name, it is of another type, or it has a feature that the other type
            cannot express.
    """
    config = saved_config(source)
    if config.model_type not in (MARIAN, OURS):
        raise ModelError(
            f"{source} is a {config.model_type} model, which cannot be converted; supported types: {MARIAN}, {OURS}."
        )
    model: PreTrainedModel = load_weights_and_config(source, torch.float32)
    tokenizer = _tokenizer(source)
    remarks = [] if tokenizer is not None else [f"{source} has no tokenizer, so the converted model has none either."]
    if config.model_type == OURS:
        return as_marian(model, tokenizer, remarks)
    return Converted(model, tokenizer, remarks)


def as_marian(model: Any, tokenizer: PreTrainedTokenizerBase | None, remarks: list[str] | None = None) -> Converted:
    """Converts our model to a Marian model, which transformers loads without this package.

    Marian's `generate` has neither Google's length penalty nor a length limit per sentence: it gets the library's
    penalty with the same exponent, which differs by a constant and by five tokens, and one limit for all sentences.

    Raises:
        ModelError: Marian cannot express the model.
    """
    marian = to_marian(model)
    settings = model.generation_config.to_diff_dict()
    own = {name: settings.pop(name, None) for name in _OWN_SETTINGS}
    remarks = list(remarks or ())
    if own["length_penalty_type"] == "google":
        remarks.append("Marian has no Google length penalty: the library's is used, with the same exponent.")
    if own["max_length_beyond_source"] is not None:
        settings["max_length"] = model.config.max_position_embeddings
        remarks.append(
            f"Marian has one length limit for all sentences: max_length is set to {settings['max_length']}."
        )
    marian.generation_config = fresh(settings)
    return Converted(marian, _without_our_class(tokenizer), remarks)


def export_marian(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path, quantization: str = "float32"
) -> list[str]:
    """Writes a Marian model, always in float32, and returns remarks for the user."""
    converted = as_marian(model, tokenizer)
    converted.save(output)
    return converted.remarks


def _without_our_class(tokenizer: PreTrainedTokenizerBase | None) -> Any | None:
    """Returns the tokenizer in a class that loads without this package; other classes are unchanged."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        split_special_tokens=tokenizer.split_special_tokens,
        model_max_length=tokenizer.model_max_length,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    )


def _tokenizer(source: str | Path) -> Any | None:
    """Returns the model's tokenizer in its own class, so that ids are unchanged; None if it has none."""
    if Path(source).is_dir() and not Path(source, "tokenizer_config.json").is_file():
        return None
    try:
        return load_tokenizer(source)
    except ImportError as error:
        raise ModelError(
            f"The tokenizer of {source} needs extra packages: run `pip install sentencepiece sacremoses`."
        ) from error
