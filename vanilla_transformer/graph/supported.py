"""The translation models that the ONNX graph supports, and the names and shapes of their weights.

Nothing here requires torch.
"""

from collections.abc import Mapping

from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.builder import OWN_OPERATORS
from vanilla_transformer.graph.settings import Json, words

MODEL = "VanillaTransformerForConditionalGeneration"
# Configuration fields that are supported or have no effect. Names that begin with an underscore have no effect either.
FIELDS = words(
    "vocab_size d_model d_ff num_heads d_k d_v encoder_layers decoder_layers dropout attention_dropout "
    "activation_dropout label_smoothing positional_encoding max_position_embeddings layer_norm_eps attention_bias "
    "output_bias activation_function tie_word_embeddings documents num_layers cell attention classifier_pooling "
    "input_feeding attention_window bidirectional initializer_range use_cache pad_token_id bos_token_id "
    "eos_token_id decoder_start_token_id is_encoder_decoder transformers_version architectures output_hidden_states "
    "return_dict dtype problem_type id2label label2id name_or_path auto_map custom_pipelines model_type "
    "tokenizer_class torch_dtype chunk_size_feed_forward"
)
_TANH: dict[str, object] = {"approximate": "tanh"}
_SILU: tuple[str, str, dict[str, object]] = ("QuickGelu", OWN_OPERATORS, {"alpha": 1.0})
# The operator of each activation function, with its domain and attributes.
ACTIVATIONS: dict[str, tuple[str, str, dict[str, object]]] = {
    "relu": ("Relu", "", {}),
    "gelu": ("Gelu", "", {}),
    "gelu_new": ("Gelu", "", _TANH),
    "gelu_pytorch_tanh": ("Gelu", "", _TANH),
    "leaky_relu": ("LeakyRelu", "", {"alpha": 0.01}),
    "mish": ("Mish", "", {}),
    "sigmoid": ("Sigmoid", "", {}),
    "silu": _SILU,
    "swish": _SILU,
    "tanh": ("Tanh", "", {}),
}


def head_width(config: Json) -> int:
    """Returns d_k = d_v; a width that is not in the configuration is d_model / num_heads.

    Raises:
        ModelError: Keys and values have different widths, which the attention operator does not support.
    """
    d_k, d_v = (config[name] or config["d_model"] // config["num_heads"] for name in ("d_k", "d_v"))
    if d_k != d_v:
        raise ModelError(f"d_k={d_k} with d_v={d_v}")
    return d_k


def shapes(config: Json) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight of a translation model, by the weight's name in `model.safetensors`.

    Raises:
        ModelError: Keys and values have different widths, which the attention operator does not support.
    """
    width, inner, vocabulary = config["d_model"], config["d_ff"], config["vocab_size"]
    all_heads = config["num_heads"] * head_width(config)
    found: dict[str, tuple[int, ...]] = {"model.shared.weight": (vocabulary, width)}
    for stack, attentions in (("encoder", ("self",)), ("decoder", ("self", "cross"))):
        for number in range(config[f"{stack}_layers"]):
            layer = f"model.{stack}.layers.{number}"
            for attention in attentions:
                for part in "qkv":
                    name = f"{layer}.{attention}_attention.{part}_proj"
                    _linear(found, name, all_heads, width, config["attention_bias"])
                _linear(found, f"{layer}.{attention}_attention.out_proj", width, all_heads, config["attention_bias"])
            _linear(found, f"{layer}.feed_forward.w_1", inner, width, True)
            _linear(found, f"{layer}.feed_forward.w_2", width, inner, True)
            for norm in (*(f"{attention}_attention_norm" for attention in attentions), "feed_forward_norm"):
                found[f"{layer}.{norm}.weight"] = found[f"{layer}.{norm}.bias"] = (width,)
        if config["positional_encoding"] == "learned":
            found[f"model.{stack}.positional_encoding.learned.weight"] = (config["max_position_embeddings"], width)
    if not config["tie_word_embeddings"]:
        found["model.decoder.embed_tokens.weight"] = found["lm_head.weight"] = (vocabulary, width)
    if config["output_bias"]:
        found["lm_head.bias"] = (vocabulary,)
    return found


def _linear(found: dict[str, tuple[int, ...]], name: str, rows: int, columns: int, bias: bool) -> None:
    found[f"{name}.weight"] = (rows, columns)
    if bias:
        found[f"{name}.bias"] = (rows,)


def first_unsupported(config: Json, weights: Mapping[str, tuple[int, ...]]) -> str | None:
    """Describes the first part of a model that the ONNX graph does not support, or returns None.

    Args:
        config: The configuration, as in the model's `config.json`.
        weights: The shape of each weight by its name.
    """
    if config.get("architectures") not in (None, [MODEL]) or config.get("model_type") != "vanilla_transformer":
        return f"a model of the type {config.get('model_type')}"
    for name, value in config.items():
        if name not in FIELDS and not name.startswith("_"):
            return f"the configuration field {name} = {value!r}"
    if config.get("activation_function") not in ACTIVATIONS:
        return f"activation_function = {config.get('activation_function')!r}"
    try:
        needed = shapes(config)
    except (KeyError, TypeError) as error:
        return f"a configuration without {error}"
    # An 8-bit matrix comes with scales.
    given = {name: shape for name, shape in weights.items() if not name.endswith(".scales")}
    for name in [*needed, *given]:
        if given.get(name) != needed.get(name):
            return f"the weight {name} of the shape {given.get(name)}"
    return None
