"""Which models and settings are computed without a model's `forward`: by the graph, the exports and the page.

Anything that is not on these lists is declined with a reason. Nothing here needs torch.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from vanilla_transformer.errors import ModelError, check_number
from vanilla_transformer.graph.builder import OWN_OPERATORS

Shapes = Mapping[str, tuple[int, ...]]
# A configuration or settings, as in `config.json` and `generation_config.json`, or as arguments of `generate`.
Json = Mapping[str, Any]


def words(text: str) -> frozenset[str]:
    """Splits a list of names."""
    return frozenset(text.split())


MODEL = "VanillaTransformerForConditionalGeneration"
# Configuration fields: a model is built by them, or they change nothing in it. So are those with an underscore.
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
# The operator of each activation, its domain and its attributes.
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
# Values of settings of `generate`, beside None and what the model's configuration has, that change nothing.
_NEUTRAL: dict[str, object] = {
    "begin_suppress_tokens": [],
    "diversity_penalty": 0.0,
    "do_sample": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "remove_invalid_values": False,
    "repetition_penalty": 1.0,
    "suppress_tokens": [],
}
# Settings that the graph follows; bad_words_ids only of single tokens.
_FOLLOWED = words(
    "bad_words_ids decoder_start_token_id early_stopping eos_token_id forced_eos_token_id length_penalty "
    "length_penalty_type max_length max_length_beyond_source max_new_tokens min_length min_new_tokens num_beams "
    "num_return_sequences pad_token_id renormalize_logits suppress_tokens"
)
# Settings that change nothing in a search without sampling and without another model, or only what it returns beside
# its hypotheses.
_WITHOUT_EFFECT = words(
    "alignment_heads alignment_step assistant_confidence_threshold assistant_lookbehind bos_token_id cache_config "
    "cache_implementation epsilon_cutoff eta_cutoff num_assistant_tokens num_assistant_tokens_schedule "
    "output_attentions output_hidden_states output_logits output_scores quantization return_dict_in_generate "
    "target_lookbehind temperature top_k top_p transformers_version typical_p use_cache"
)
# With larger exponents the scores of long translations become NaN, or all the same.
MAX_LENGTH_PENALTY = 10
# More than fit into any memory.
_MAX_BEAMS, _MAX_LENGTH = 10_000, 1_000_000


def not_followed(settings: Json, config: Json, followed: Collection[str] = _FOLLOWED) -> list[str]:
    """Returns the settings of `generate` with an effect that a search does not follow; any unknown one is among them.

    Args:
        settings: The settings.
        config: The model's configuration.
        followed: Those that it follows; of bad_words_ids only single tokens.
    """
    return [
        name
        for name, value in settings.items()
        if not (
            name.startswith("_")
            or name in _WITHOUT_EFFECT
            or value in (None, _NEUTRAL.get(name), config.get(name))
            or (name in followed and (name != "bad_words_ids" or all(len(some) == 1 for some in value)))
        )
    ]


def limit_of_new_tokens(settings: Json) -> int | None:
    """Returns the limit of new tokens among a translator's settings; None where its source alone sets one."""
    limit, length, beyond = map(settings.get, ("max_new_tokens", "max_length", "max_length_beyond_source"))
    # `Seq2SeqTrainer` completes the settings of its model with all of the library's defaults, and saves them: a length
    # of 20 beside another that is no setting of a search is its own.
    is_written = length == 20 and settings.get("assistant_lookbehind") is not None
    if limit is not None or (beyond is not None and (length is None or is_written)):
        return limit
    # The library's default is 20 new tokens; a length counts the token that the decoder starts with.
    return 20 if length is None else length - 1


def check_search(**settings: object) -> None:
    """Refuses invalid settings of a search; those with other names are left to it."""
    check_number("num_beams", settings.get("num_beams"), 1, _MAX_BEAMS)
    check_number("num_return_sequences", settings.get("num_return_sequences"), 1)
    penalty = settings.get("length_penalty")
    check_number("length_penalty", penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, whole=False)
    check_number("max_length_beyond_source", settings.get("max_length_beyond_source"), 0, _MAX_LENGTH)
    # A length counts the token that the decoder starts with.
    for name, minimum in {"max_length": 2, "max_new_tokens": 1, "min_length": 0, "min_new_tokens": 0}.items():
        check_number(name, settings.get(name), minimum)


def shapes(config: Json) -> dict[str, tuple[int, ...]]:
    """Returns the names of a translator's weights, as `model.safetensors` has them, with their shapes.

    Raises:
        ModelError: Its heads have two widths; the operator has one.
    """
    if config["d_k"] != config["d_v"]:
        raise ModelError(f"d_k={config['d_k']} beside d_v={config['d_v']}")
    width, inner, vocabulary = config["d_model"], config["d_ff"], config["vocab_size"]
    all_heads = config["num_heads"] * config["d_k"]
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


def unknown(config: Json, weights: Shapes) -> str | None:
    """Describes the first thing in a model that the graph does not know; None if it knows all of it.

    Args:
        config: As in its `config.json`.
        weights: The shapes of its weights by their names.
    """
    if config.get("architectures") not in (None, [MODEL]) or config.get("model_type") != "vanilla_transformer":
        return f"a model of the type {config.get('model_type')}"
    for name, field in config.items():
        if name not in FIELDS and not name.startswith("_"):
            return f"the configuration field {name} = {field!r}"
    if config.get("activation_function") not in ACTIVATIONS:
        return f"activation_function = {config.get('activation_function')!r}"
    try:
        needed = shapes(config)
    except (KeyError, TypeError) as error:
        return f"a configuration without {error}"
    # Matrices of 8 bits have scales.
    given = {name: shape for name, shape in weights.items() if name.removesuffix(".scales") == name}
    for name in [*needed, *given]:
        if given.get(name) != needed.get(name):
            return f"the weight {name} of the shape {given.get(name)}"
    return None


@dataclass(frozen=True)
class Settings:
    """The settings of a search that the graph runs.

    Attributes:
        google: True for Google's length penalty.
        max_length_beyond_source: Tokens that a translation may have more than its source, where `max_new_tokens` is
            None.
        max_new_tokens: Maximum number of tokens of a translation.
        min_new_tokens: Minimum number of tokens before an end.
        max_positions: Number of learned positions; None if positions are unlimited.
        padding: Token after the end.
        ends: Tokens that end a hypothesis.
        suppressed: Tokens that are never written.
        forced_end: Tokens one of which is forced at the length limit.
        renormalized: Whether probabilities sum to one after tokens are ruled out.
    """

    num_beams: int
    num_return_sequences: int
    length_penalty: float
    google: bool
    early_stopping: bool | str
    max_length_beyond_source: int
    max_new_tokens: int | None
    min_new_tokens: int
    max_positions: int | None
    start: int
    padding: int
    ends: tuple[int, ...]
    suppressed: tuple[int, ...]
    forced_end: tuple[int, ...] | None
    renormalized: bool

    @classmethod
    def of(cls, config: Json, own: Json, call: Json | None = None) -> Self:
        """Reads the settings of a search: those of a call, then the model's own.

        Args:
            config: The model's configuration.
            own: As in its `generation_config.json`.
            call: As arguments of `generate`; None stands for one not given.

        Raises:
            ModelError: There is a setting that the graph does not follow.
        """
        call = {name: value for name, value in (call or {}).items() if value is not None}
        given: Json = {name: value for name, value in {**own, **call}.items() if value is not None}
        for name in not_followed(given, config):
            raise ModelError(f"{name}={given[name]!r}")
        kind = given.get("length_penalty_type", "huggingface")
        if kind not in ("google", "huggingface"):
            raise ModelError(f"length_penalty_type={kind!r}")
        google, vocabulary = kind == "google", config["vocab_size"]
        limits = call if call.keys() & _LIMITS else given
        learned = config["positional_encoding"] == "learned"
        max_new_tokens = limit_of_new_tokens(limits)
        # A sentence's own limit cuts, as in `generate`.
        forced = None if max_new_tokens is None else given.get("forced_eos_token_id")
        settings = cls(
            num_beams=given.get("num_beams", 1),
            num_return_sequences=given.get("num_return_sequences", 1),
            length_penalty=float(given.get("length_penalty", 0.6 if google else 1.0)),
            google=google,
            early_stopping=given.get("early_stopping", "never" if google else False),
            max_length_beyond_source=limits.get("max_length_beyond_source", 0),
            max_new_tokens=max_new_tokens,
            min_new_tokens=given.get("min_new_tokens", given.get("min_length", 1) - 1),
            max_positions=config["max_position_embeddings"] if learned else None,
            start=given.get("decoder_start_token_id", config["decoder_start_token_id"]),
            padding=given.get("pad_token_id", config["pad_token_id"]),
            ends=_tokens(given.get("eos_token_id", config["eos_token_id"])),
            suppressed=tuple(
                [some[0] for some in given.get("bad_words_ids", ())] + [*given.get("suppress_tokens", ())]
            ),
            forced_end=None if forced is None else _tokens(forced),
            renormalized=bool(given.get("renormalize_logits")),
        )
        if settings.early_stopping not in (True, False, "never"):
            raise ModelError(f"early_stopping={settings.early_stopping!r}")
        check_search(**given)
        tokens = settings.start, settings.padding, *settings.ends, *settings.suppressed, *(settings.forced_end or ())
        if not settings.ends or any(type(one) is not int or not 0 <= one < vocabulary for one in tokens):
            raise ModelError(f"a token that is not among {vocabulary:,}")
        if settings.num_beams > 1 and max(2, 1 + len(settings.ends)) * settings.num_beams > vocabulary:
            raise ModelError(f"num_beams={settings.num_beams} in a vocabulary of {vocabulary}")
        if settings.num_return_sequences > settings.num_beams:
            raise ModelError(f"num_return_sequences={settings.num_return_sequences}")
        return settings


_LIMITS = words("max_new_tokens max_length max_length_beyond_source")


def _tokens(given: int | list[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)
