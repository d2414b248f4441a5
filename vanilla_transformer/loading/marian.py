"""Marian (OPUS-MT) models as models of this package, and ours as theirs: position dimensions stand in another order.

Every change is exact up to the rounding of a product: reordered dimensions, factors that cancel.
"""

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedConfig

from vanilla_transformer.errors import ModelError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

MARIAN = "marian"  # Its model type.

Weights = dict[str, torch.Tensor]

# The default epsilon of `torch.nn.LayerNorm`, which Marian uses.
LAYER_NORM_EPS = 1e-5

# Fields that both configurations have under one name.
_SAME_FIELDS = (
    *("d_model", "encoder_layers", "decoder_layers", "activation_function", "max_position_embeddings"),
    *("dropout", "attention_dropout", "activation_dropout"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
# Ours has these once, Marian each stack its own.
_STACKS_FIELDS = {"num_heads": "attention_heads", "d_ff": "ffn_dim"}
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


def _their_name(name: str) -> str:
    """Returns Marian's name for a weight of our layers."""
    layer, dot, rest = name.partition(".layers.")
    for ours, theirs in _PARTS.items():
        rest = rest.replace(f".{ours}", f".{theirs}")
    return layer + dot + rest


def _reordered(weights: Weights, order: torch.Tensor) -> Weights:
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
    bias = pad(marian.final_logits_bias.flatten(), (0, vocab_size - len(output)), value=-1e4)
    config = _config(theirs, vocab_size, tied=tied, output_bias=bool(bias.any()))
    model = VanillaTransformerForConditionalGeneration(config)
    weights = {name: state[_their_name(name)] for name in model.state_dict() if ".layers." in name}
    embeddings = {"model.shared.weight": source * factor, "lm_head.weight": output}
    embeddings |= {} if tied else {"model.decoder.embed_tokens.weight": target * factor}
    weights |= {name: pad(weight, (0, 0, 0, vocab_size - len(weight))) for name, weight in embeddings.items()}
    # Marian has all sines first, then all cosines: our dimension 2i is its i, and 2i + 1 is its i + d_model / 2.
    weights = _reordered(weights, torch.arange(config.d_model).view(2, -1).T.flatten())
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


def _config(theirs: PreTrainedConfig, vocab_size: int, *, tied: bool, output_bias: bool) -> VanillaTransformerConfig:
    """Returns our configuration of a Marian model; refuses two values of a setting that ours has only once."""
    fields = {name: getattr(theirs, name) for name in _SAME_FIELDS}
    for ours, name in _STACKS_FIELDS.items():
        fields[ours], other = (getattr(theirs, f"{stack}_{name}") for stack in ("encoder", "decoder"))
        if fields[ours] != other:
            raise ModelError(f"encoder_{name} is {fields[ours]} and decoder_{name} {other}: both must be the same.")
    return VanillaTransformerConfig(
        **fields,
        vocab_size=vocab_size,
        label_smoothing=0.0,
        layer_norm_eps=LAYER_NORM_EPS,
        attention_bias=True,
        tie_word_embeddings=tied,
        output_bias=output_bias,
    )


@torch.no_grad()
def to_marian(model: VanillaTransformerForConditionalGeneration) -> MarianMTModel:
    """Converts our model to a Marian model with the same logits.

    Raises:
        ModelError: The model has what Marian's cannot express.
    """
    config = model.config
    if config.positional_encoding != "sinusoidal" or not config.d_k == config.d_v == config.d_model / config.num_heads:
        raise ModelError(
            "Marian models, as which a model is exported for CTranslate2 too, have sinusoidal positions and d_k = d_v "
            f"= d_model / num_heads: this one has {config.positional_encoding} positions and {config.num_heads} heads "
            f"with d_k {config.d_k} and d_v {config.d_v}, and d_model {config.d_model}."
        )
    marian = MarianMTModel(_their_config(config))
    weights: Weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    bias = weights.pop("lm_head.bias", None)
    _adopt_epsilon(weights, config)
    weights = _reordered(weights, torch.arange(config.d_model).view(-1, 2).T.flatten())
    if not config.tie_word_embeddings:  # Marian has `shared` only if tied.
        weights["model.encoder.embed_tokens.weight"] = weights.pop("model.shared.weight")
    state = marian.state_dict()
    for name, weight in weights.items():
        state[_their_name(name)] = weight
    for name in state:
        # Our projections have no biases unless `attention_bias` is on.
        if not config.attention_bias and "_attn." in name and name.endswith(".bias"):
            state[name] = torch.zeros_like(state[name])
    state["final_logits_bias"] = torch.zeros(1, config.vocab_size) if bias is None else bias[None]
    marian.load_state_dict(state)
    return marian.eval()


def _their_config(ours: VanillaTransformerConfig) -> MarianConfig:
    fields = {name: getattr(ours, name) for name in _SAME_FIELDS}
    for name, theirs in _STACKS_FIELDS.items():
        fields |= {f"{stack}_{theirs}": getattr(ours, name) for stack in ("encoder", "decoder")}
    return MarianConfig(
        **fields,
        vocab_size=ours.vocab_size,
        decoder_vocab_size=ours.vocab_size,
        scale_embedding=True,
        share_encoder_decoder_embeddings=ours.tie_word_embeddings,
        tie_word_embeddings=ours.tie_word_embeddings,
        forced_eos_token_id=None,
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
