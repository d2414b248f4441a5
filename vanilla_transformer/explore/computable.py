"""Models that the page can compute: it has their equations in JavaScript, and refuses all others."""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from vanilla_transformer.errors import ModelError
from vanilla_transformer.loading.standard_models import unsupported_part
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.modeling_vanilla_transformer_decoder import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
)
from vanilla_transformer.recurrent.modeling_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderForConditionalGeneration,
)

_PAGE_FAMILIES: dict[type, str] = {
    VanillaTransformerForConditionalGeneration: "encoder-decoder",
    VanillaTransformerDecoderForCausalLM: "language-model",
    VanillaTransformerEncoderForMaskedLM: "masked-language-model",
    VanillaTransformerEncoderForSequenceClassification: "classifier",
    VanillaTransformerEncoderForTokenClassification: "tagger",
    RecurrentEncoderDecoderForConditionalGeneration: "recurrent",
}
WRITERS = ("encoder-decoder", "recurrent", "language-model")
# Configuration fields that change a forward pass; each occurs in the page's equations.
_FIELDS = (
    *("d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers", "vocab_size"),
    *("positional_encoding", "max_position_embeddings", "layer_norm_eps", "activation_function", "classifier_pooling"),
    *("num_layers", "cell", "attention", "input_feeding", "attention_window", "bidirectional"),
)
_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "sigmoid", "silu", "swish", "tanh")
_MAX_PARAMETERS = 40_000_000


def family(model: PreTrainedModel) -> str:
    """Returns the model's family among those of the page."""
    found = _PAGE_FAMILIES.get(type(model))
    if found is None:
        known = ", ".join(kind.__name__ for kind in _PAGE_FAMILIES)
        raise ModelError(f"The page cannot compute a {type(model).__name__}, only {known}.")
    config: PreTrainedConfig = model.config
    if found == "classifier" and (config.problem_type == "regression" or config.num_labels == 1):
        raise ModelError("The model gives a text a number (regression), but the page shows classes.")
    if reason := unsupported_part(model, _ACTIVATIONS):
        raise ModelError(f"The page cannot compute {reason}.")
    count = sum(weight.numel() for weight in model.parameters())
    if count > _MAX_PARAMETERS:
        raise ModelError(
            f"The model has {count:,} parameters, but a browser can only compute up to {_MAX_PARAMETERS:,} "
            "in reasonable time."
        )
    return found


def fields(config: Any) -> dict[str, object]:
    """Returns the fields of a configuration that the equations need."""
    labels = [str(config.id2label[number]) for number in range(config.num_labels)]
    return {name: getattr(config, name) for name in _FIELDS if hasattr(config, name)} | {
        "labels": labels,
        "problem_type": config.problem_type,
    }
