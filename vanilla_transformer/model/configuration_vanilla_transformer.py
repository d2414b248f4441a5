"""The paper's hyperparameters, and its published settings by name."""

from typing import Any, Literal, Self

from huggingface_hub.dataclasses import strict, validated_field
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

# Table 3, one entry per row: the differences from `base`. `small` and `tiny` are ours, for corpora that the paper's
# sizes would only memorise.
_PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"d_model": 128, "d_ff": 512, "num_heads": 4, "encoder_layers": 4, "decoder_layers": 4},
    "small": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "encoder_layers": 4, "decoder_layers": 4},
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    "table3-A-h1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "table3-A-h4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "table3-A-h16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "table3-A-h32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "table3-B-dk16": {"d_k": 16},
    "table3-B-dk32": {"d_k": 32},
    "table3-C-n2": {"encoder_layers": 2, "decoder_layers": 2},
    "table3-C-n4": {"encoder_layers": 4, "decoder_layers": 4},
    "table3-C-n8": {"encoder_layers": 8, "decoder_layers": 8},
    "table3-C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "table3-C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "table3-C-dff1024": {"d_ff": 1024},
    "table3-C-dff4096": {"d_ff": 4096},
    "table3-D-dropout0.0": {"dropout": 0.0},
    "table3-D-dropout0.2": {"dropout": 0.2},
    "table3-D-smoothing0.0": {"label_smoothing": 0.0},
    "table3-D-smoothing0.2": {"label_smoothing": 0.2},
    "table3-E": {"positional_encoding": "learned"},
}


def between(minimum: float, maximum: float, default: float | None) -> Any:
    """Returns a field for numbers within limits; others are mistakes, refused before memory is allocated."""

    def check(value: float | None) -> None:
        if value is not None and not minimum <= value <= maximum:
            raise ValueError(f"must be from {minimum} to {maximum:,}, not {value}")

    return validated_field(check, default=default)


class DerivingConfig(PreTrainedConfig):
    """A configuration in which some fields follow from others, unless they are given.

    A derived value is saved as None, so that `from_pretrained(directory, d_model=32)` derives it again.
    """

    def derived_fields(self) -> dict[str, object]:
        """Return the values of the fields that follow from others."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and None for derived values."""
        fields: dict[str, Any] = super().to_dict()
        derived = self.derived_fields().items()
        return {name: None if (name, value) in derived else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from saved fields, with others in their place, before any value is derived."""
        names = {name: cls.attribute_map.get(name, name) for name in kwargs}
        own = cls.__dataclass_fields__.keys() - PreTrainedConfig.__dataclass_fields__.keys()
        changed = {names[name]: kwargs.pop(name) for name in [*kwargs] if names[name] in own}
        if changed:  # Earlier versions saved derived values.
            config_dict = cls(**config_dict).to_dict()
        return super().from_dict({**config_dict, **changed}, **kwargs)


@strict
class VanillaTransformerBaseConfig(DerivingConfig):
    """Sizes and settings shared by all families; the defaults are the base model of "Attention Is All You Need".

    Args:
        vocab_size: Number of entries in the shared vocabulary (section 5.1).
        d_model: Width of every layer's output (section 3.1).
        d_ff: Inner width of the feed-forward layers (section 3.3).
        num_heads: Parallel attention heads h (section 3.2.2).
        d_k: Width of a head's queries and keys; `d_model // num_heads` by default.
        d_v: Width of a head's values; `d_model // num_heads` by default.
        dropout: P_drop, on each sub-layer's output and on the sums of embeddings and positions (section 5.4).
        attention_dropout: Share of the attention weights that is dropped. Off by default: section 5.4 names two places
            for dropout, and this is neither. The authors' later code and most lectures have it.
        activation_dropout: Share of the feed-forward networks' inner values that is dropped. Off for the same reason.
        label_smoothing: ε_ls, applied to the training loss only (section 5.4).
        positional_encoding: `sinusoidal` (section 3.5) or `learned` (Table 3, row E).
        max_position_embeddings: Longest sequence of `learned` positions; sinusoidal ones have no limit.
        layer_norm_eps: Added to the variance in layer normalisation; the paper gives no value, its authors' code 1e-6.
        attention_bias: Biases in the attention projections; the paper's projections are matrices.
        output_bias: A bias on the logits over the vocabulary, which the paper does not have.
        activation_function: Between the two products of Eq. 2; any name that transformers knows, such as `gelu`.
        tie_word_embeddings: One matrix for input and output (section 3.4).
    """

    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    attribute_map = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "head_dim": "d_k"}

    vocab_size: int = between(1, 2**24, 37000)
    d_model: int = between(1, 2**16, 512)
    d_ff: int = between(1, 2**20, 2048)
    num_heads: int = between(1, 2**12, 8)
    d_k: int | None = between(1, 2**16, None)
    d_v: int | None = between(1, 2**16, None)
    dropout: float | int = between(0, 1, 0.1)
    attention_dropout: float | int = between(0, 1, 0.0)
    activation_dropout: float | int = between(0, 1, 0.0)
    label_smoothing: float | int = between(0, 1, 0.1)
    positional_encoding: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_position_embeddings: int = between(1, 2**24, 1024)
    layer_norm_eps: float | int = between(0, 1, 1e-6)
    attention_bias: bool = False
    output_bias: bool = False
    activation_function: str = "relu"
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: object) -> None:
        if None in (self.d_k, self.d_v) and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}: give d_k and d_v, or "
                "another number of heads."
            )
        self.d_k = self.d_k or self.d_model // self.num_heads
        self.d_v = self.d_v or self.d_model // self.num_heads
        if self.positional_encoding == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"Sinusoidal positions come in pairs: d_model must be even, not {self.d_model}.")
        if self.activation_function not in ACT2FN:
            raise ValueError(
                f"There is no activation_function {self.activation_function!r}; there are {', '.join(ACT2FN)}."
            )
        super().__post_init__(**kwargs)

    def derived_fields(self) -> dict[str, object]:
        """Return the widths of a head as section 3.2.2 has them."""
        return dict.fromkeys(("d_k", "d_v"), self.d_model // self.num_heads)

    @classmethod
    def presets(cls) -> list[str]:
        """Names for `from_preset`: our two small sizes, the paper's `base` and `big`, and every row of Table 3."""
        return list(_PRESETS)

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> Self:
        """Returns the configuration called `name`, any field overridden; a family of one stack takes only its layers.

        Raises:
            ValueError: There is no preset of that name.
        """
        if name not in _PRESETS:
            raise ValueError(f"There is no preset {name!r}; there are {', '.join(_PRESETS)}.")
        fields = {field: value for field, value in _PRESETS[name].items() if hasattr(cls, field)}
        return cls(**{**fields, **overrides})


@strict
class VanillaTransformerConfig(VanillaTransformerBaseConfig):
    """Sizes and settings of the Transformer of "Attention Is All You Need"; the defaults are its base model.

    In addition to the arguments of `VanillaTransformerBaseConfig`:

    Args:
        encoder_layers: N of the encoder (section 3.1).
        decoder_layers: N of the decoder.
        output_bias: Models converted from Marian have one.
        tie_word_embeddings: One matrix for source, target and output (section 3.4); otherwise three.
    """

    model_type = "vanilla_transformer"
    attribute_map = {**VanillaTransformerBaseConfig.attribute_map, "num_hidden_layers": "encoder_layers"}

    encoder_layers: int = between(1, 2**10, 6)
    decoder_layers: int = between(1, 2**10, 6)
    is_encoder_decoder: bool = True
    use_cache: bool = True
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: object) -> None:
        # A saved configuration may give the order of its targets; computed in another, they would be nonsense.
        if kwargs.pop("target_direction", "left-to-right") != "left-to-right":
            raise ValueError("The model writes its targets from right to left, which is not supported.")
        super().__post_init__(**kwargs)


@strict
class VanillaTransformerEncoderConfig(VanillaTransformerBaseConfig):
    """Sizes and settings of an encoder-only model; the defaults are the encoder of the paper's base model.

    In addition to the arguments of `VanillaTransformerBaseConfig`:

    Args:
        encoder_layers: N (section 3.1).
        label_smoothing: Off by default: section 5.4 uses it for translation, where it "hurts perplexity, but improves
            BLEU".
        classifier_pooling: State that a sequence classifier reads: `mean`, the mean over all tokens that are not
            padding, or `first`, that of the first token.
    """

    model_type = "vanilla_transformer_encoder"
    attribute_map = {**VanillaTransformerBaseConfig.attribute_map, "num_hidden_layers": "encoder_layers"}

    encoder_layers: int = between(1, 2**10, 6)
    label_smoothing: float | int = between(0, 1, 0.0)
    classifier_pooling: Literal["mean", "first"] = "mean"


@strict
class VanillaTransformerDecoderConfig(VanillaTransformerBaseConfig):
    """Sizes and settings of a decoder-only model; the defaults are the decoder of the paper's base model.

    In addition to the arguments of `VanillaTransformerBaseConfig`:

    Args:
        decoder_layers: N (section 3.1); these layers do not attend to an encoder's output.
        label_smoothing: Off by default: section 5.4 uses it for translation, where it "hurts perplexity, but improves
            BLEU", and a language model is measured by its perplexity.
        documents: The form of its training text: `lines`, texts that end in `</s>`, or `packed`, continuous text.
    """

    model_type = "vanilla_transformer_decoder"
    attribute_map = {**VanillaTransformerBaseConfig.attribute_map, "num_hidden_layers": "decoder_layers"}

    decoder_layers: int = between(1, 2**10, 6)
    label_smoothing: float | int = between(0, 1, 0.0)
    documents: Literal["lines", "packed"] = "lines"
    use_cache: bool = True

    def __post_init__(self, **kwargs: object) -> None:
        if kwargs.get("add_cross_attention"):
            raise ValueError("add_cross_attention is not for a decoder alone: an encoder-decoder attends to a source.")
        super().__post_init__(**kwargs)
