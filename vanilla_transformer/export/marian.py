"""Our models as Marian (OPUS-MT) models, which transformers runs without this package."""

import torch
from transformers import MarianConfig, MarianMTModel
from transformers.activations import ACT2FN

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.refusals import refuse_other_widths, refuse_unexportable
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.translation.marian import LAYER_NORM_EPS, Weights, load, reordered, their_name


@torch.no_grad()
def to_marian(model: VanillaTransformerForConditionalGeneration) -> MarianMTModel:
    """Converts our model to a Marian model with the same logits.

    Raises:
        ModelError: Our model has a feature that Marian cannot express.
    """
    refuse_unexportable(model, ACT2FN)
    config = model.config
    marian = MarianMTModel(_marian_config(config))
    weights: Weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    bias = weights.pop("lm_head.bias", None)
    _adopt_epsilon(weights, config)
    weights = reordered(weights, torch.arange(config.d_model).view(-1, 2).T.flatten())
    if not config.tie_word_embeddings:  # Marian has `shared` only if tied.
        weights["model.encoder.embed_tokens.weight"] = weights.pop("model.shared.weight")
    state = marian.state_dict()
    for name, weight in weights.items():
        state[their_name(name)] = weight
    for name in state:
        # Our projections have no biases unless `attention_bias` is on.
        if not config.attention_bias and "_attn." in name and name.endswith(".bias"):
            state[name] = torch.zeros_like(state[name])
    state["final_logits_bias"] = torch.zeros(1, config.vocab_size) if bias is None else bias[None]
    load(marian, state)
    return marian


def _marian_config(config: VanillaTransformerConfig) -> MarianConfig:
    if config.positional_encoding != "sinusoidal":
        raise ModelError("Marian's positions are sinusoidal: a model with learned positions cannot become one.")
    refuse_other_widths(config, "Marian")
    return MarianConfig(
        vocab_size=config.vocab_size,
        decoder_vocab_size=config.vocab_size,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        activation_function=config.activation_function,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        max_position_embeddings=config.max_position_embeddings,
        scale_embedding=True,
        share_encoder_decoder_embeddings=config.tie_word_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        forced_eos_token_id=None,
        decoder_start_token_id=config.decoder_start_token_id,  # type: ignore[arg-type]
    )


def _adopt_epsilon(weights: Weights, config: VanillaTransformerConfig) -> None:
    """Makes Marian's fixed ε act as ours: LayerNorm of c·x with c²·ε equals LayerNorm of x with ε.

    Activations between layers become c times as large, and every weight that reads them is divided by c. Only the sum
    of embedding and position before a stack is unchanged: beside its variance of about one, ε is negligible.
    """
    c = (LAYER_NORM_EPS / config.layer_norm_eps) ** 0.5
    if c == 1:
        return
    for name, weight in weights.items():
        if ".layers." not in name:
            continue
        stack, _, rest = name.partition(".layers.")
        layer, _, part = rest.partition(".")
        if layer == "0" and part.startswith("self_attention."):
            continue
        depth = config.encoder_layers if stack.endswith("encoder") else config.decoder_layers
        reads = part.endswith("q_proj.weight") or part == "feed_forward.w_1.weight"
        reads |= part.startswith("self_attention.") and part.endswith(("k_proj.weight", "v_proj.weight"))
        writes = ".out_proj." in part or ".w_2." in part or "_norm." in part
        if part.startswith("feed_forward_norm.") and int(layer) == depth - 1:
            writes = False
        if reads or writes:
            weight *= c if writes else 1 / c
