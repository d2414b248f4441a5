"""Converts Marian (OPUS-MT) models to ours, and ours to Marian models, which do not need this package."""

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.activations import ACT2FN

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.refusals import exportable
from vanilla_transformer.graph.settings import limit_of_new_tokens
from vanilla_transformer.loading.marian import MARIAN, fresh, to_marian
from vanilla_transformer.loading.models import load_weights_and_config, saved_config
from vanilla_transformer.loading.tokenizers import load_tokenizer
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

OURS = VanillaTransformerConfig.model_type

Converted = tuple[PreTrainedModel, PreTrainedTokenizerBase, list[str]]
"""A model of another type with the same logits, its tokenizer, and remarks for the user."""


def convert(source: str | Path) -> Converted:
    """Converts a Marian model to ours, or our model to Marian."""
    config = saved_config(source)
    if config.model_type not in (MARIAN, OURS):
        raise ModelError(
            f"{source} is a {config.model_type} model, which cannot be converted; supported types: {MARIAN}, {OURS}."
        )
    model = load_weights_and_config(source, torch.float32)
    assert isinstance(model, VanillaTransformerForConditionalGeneration)  # A Marian model is loaded as this class.
    tokenizer = load_tokenizer(source)
    if config.model_type == OURS:
        return as_marian(model, tokenizer)
    dropped = [name for name in ("encoder_layerdrop", "decoder_layerdrop") if getattr(config, name, 0)]
    remarks = [f"{name} is dropped: the paper's model has none, and it only affects training." for name in dropped]
    return model, tokenizer, remarks


def as_marian(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Converted:
    """Converts our model to a Marian model, which transformers loads without this package.

    Marian's `generate` has neither Google's length penalty nor a length limit per sentence. So the model gets the
    penalty of transformers with the same exponent, which differs by a constant factor and by five tokens, and one
    length limit for all sentences.
    """
    model = exportable(model, ACT2FN)
    marian = to_marian(model)
    settings = model.generation_config.to_diff_dict()
    limit, remarks = limit_of_new_tokens(settings), []
    penalty, beyond = (settings.pop(name, None) for name in ("length_penalty_type", "max_length_beyond_source"))
    if penalty == "google":
        remarks.append("Marian has no Google length penalty: transformers' penalty is used with the same exponent.")
    if beyond is not None and limit is None:
        settings["max_length"] = model.config.max_position_embeddings
        remarks.append(
            f"Marian has one length limit for all sentences, so max_length is set to {settings['max_length']}."
        )
    marian.generation_config = fresh(settings)
    return marian, _without_our_class(tokenizer), remarks


def _without_our_class(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns the tokenizer in a class that loads without this package; other classes are unchanged."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        split_special_tokens=tokenizer.split_special_tokens,
        model_max_length=tokenizer.model_max_length,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    )
