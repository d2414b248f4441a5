"""Marian (OPUS-MT) models as models of this package: the paper's, with position dimensions in another order.

Every change is exact up to the rounding of a product: reordered dimensions, units that are always zero, factors that
cancel.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, MarianMTModel, PreTrainedConfig
from transformers.activations import ACT2FN

from vanilla_transformer.errors import ModelError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

MARIAN = "marian"  # Its model type.

Weights = dict[str, torch.Tensor]

# The default epsilon of `torch.nn.LayerNorm`, which Marian uses.
LAYER_NORM_EPS = 1e-5

_PARTS = {
    "self_attention.": "self_attn.",
    "self_attention_norm.": "self_attn_layer_norm.",
    "cross_attention.": "encoder_attn.",
    "cross_attention_norm.": "encoder_attn_layer_norm.",
    "feed_forward.w_1.": "fc1.",
    "feed_forward.w_2.": "fc2.",
    "feed_forward_norm.": "final_layer_norm.",
}

# The axis of a weight that goes along d_model, by the end of the weight's name.
_ROWS = ("out_proj.weight", "out_proj.bias", "w_2.weight", "w_2.bias", "_norm.weight", "_norm.bias")
_EMBEDDINGS = ("shared.weight", "embed_tokens.weight", "lm_head.weight")
_COLUMNS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "w_1.weight", *_EMBEDDINGS)


def their_name(name: str) -> str:
    """Returns Marian's name for a weight of our layers."""
    layer, dot, rest = name.partition(".layers.")
    for ours, theirs in _PARTS.items():
        rest = rest.replace(f".{ours}", f".{theirs}")
    return layer + dot + rest


def reordered(weights: Weights, order: torch.Tensor) -> Weights:
    """Reorders the model dimensions of every weight that has them."""
    result = {}
    for name, weight in weights.items():
        if name.endswith(_COLUMNS):
            result[name] = weight[:, order]
        else:
            result[name] = weight[order] if name.endswith(_ROWS) else weight
    return result


@torch.no_grad()
def from_marian(marian: MarianMTModel) -> VanillaTransformerForConditionalGeneration:
    """Converts a Marian model to ours, with the same logits and its own settings of `generate`.

    Layer drop, which acts in training alone, is not taken over.

    Raises:
        ModelError: The model has a feature that ours cannot express.
    """
    theirs, state = marian.config, marian.state_dict()
    source, target = (stack.embed_tokens.weight for stack in (marian.model.encoder, marian.model.decoder))
    output = marian.lm_head.weight
    # Section 3.4: the three matrices are one, unless only the two of the inputs are multiplied by a factor.
    tied = theirs.scale_embedding and source.data_ptr() == target.data_ptr() == output.data_ptr()
    factor = 1.0 if theirs.scale_embedding else theirs.d_model**-0.5
    vocab_size = max(len(source), len(output))
    # Types beyond the target vocabulary get no probability. Not -inf, because a smoothed loss must be finite: the
    # exponential of this is zero in float32.
    bias = torch.cat((marian.final_logits_bias.flatten(), torch.full((vocab_size - len(output),), -1e4)))
    config = _config(theirs, vocab_size, tie_word_embeddings=tied, output_bias=bool(bias.any()))
    model = VanillaTransformerForConditionalGeneration(config)
    weights = _layer_weights(list(model.state_dict()), state, config.d_ff)
    weights["model.shared.weight"] = _with_zeros(source * factor, vocab_size)
    weights["lm_head.weight"] = _with_zeros(output, vocab_size)
    if not tied:
        weights["model.decoder.embed_tokens.weight"] = _with_zeros(target * factor, vocab_size)
    # Marian has all sines first, then all cosines: our dimension 2i is its i, and 2i + 1 is its i + d_model / 2.
    weights = reordered(weights, torch.arange(config.d_model).view(2, -1).T.flatten())
    if config.output_bias:
        weights["lm_head.bias"] = bias
    model.load_state_dict(weights)
    model.generation_config = _its_search(marian)
    return model.eval()


def _its_search(marian: MarianMTModel) -> GenerationConfig:
    """Returns its settings for our `generate`, with the library's penalty; without a limit, as many tokens as it has
    positions: the library's default of 20 would cut sentences."""
    settings = marian.generation_config.to_diff_dict()
    if settings.get("max_length") is None and settings.get("max_new_tokens") is None:
        settings["max_length"] = marian.config.max_position_embeddings
    return fresh({**settings, "length_penalty_type": "huggingface"})


def fresh(settings: dict[str, object]) -> GenerationConfig:
    """Makes a generation config that keeps our own keys when saved; one from a model config would lose them."""
    not_settings = ("_from_model_config", "transformers_version")
    return GenerationConfig(**{name: value for name, value in settings.items() if name not in not_settings})


def _config(theirs: PreTrainedConfig, vocab_size: int, **settings: Any) -> VanillaTransformerConfig:
    """Returns our configuration of a Marian model; refuses two values of a setting that ours has only once."""
    heads = theirs.encoder_attention_heads
    if heads != theirs.decoder_attention_heads:
        raise ModelError(
            f"The encoder has {heads} attention heads but the decoder {theirs.decoder_attention_heads}: "
            "num_heads must be the same for both."
        )
    narrow, d_ff = sorted((theirs.encoder_ffn_dim, theirs.decoder_ffn_dim))
    if narrow != d_ff and ACT2FN[theirs.activation_function](torch.zeros(1)).item() != 0:
        raise ModelError(
            f"The feed-forward layers are {narrow} and {d_ff} wide, and {theirs.activation_function} of zero is not "
            "zero: d_ff must be the same for both."
        )
    return VanillaTransformerConfig(
        vocab_size=vocab_size,
        d_model=theirs.d_model,
        d_ff=d_ff,
        num_heads=heads,
        encoder_layers=theirs.encoder_layers,
        decoder_layers=theirs.decoder_layers,
        dropout=theirs.dropout,
        attention_dropout=theirs.attention_dropout,
        activation_dropout=theirs.activation_dropout,
        label_smoothing=0.0,
        layer_norm_eps=LAYER_NORM_EPS,
        attention_bias=True,
        activation_function=theirs.activation_function,
        max_position_embeddings=theirs.max_position_embeddings,
        pad_token_id=theirs.pad_token_id,
        bos_token_id=theirs.bos_token_id,
        eos_token_id=theirs.eos_token_id,
        decoder_start_token_id=theirs.decoder_start_token_id,
        **settings,
    )


def _layer_weights(names: list[str], theirs: Mapping[str, torch.Tensor], d_ff: int) -> Weights:
    """Returns the layers' weights under our names; narrower feed-forward layers get units that are always zero."""
    weights = {name: theirs[their_name(name)].clone() for name in names if ".layers." in name}
    for name, weight in weights.items():
        if ".w_1." in name:
            weights[name] = _with_zeros(weight, d_ff)
        elif name.endswith(".w_2.weight"):
            weights[name] = _with_zeros(weight.T, d_ff).T.contiguous()
    return weights


def _with_zeros(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Appends rows of zeros to a weight."""
    missing = rows - weight.shape[0]
    return weight if missing == 0 else torch.cat((weight, weight.new_zeros(missing, *weight.shape[1:])))
