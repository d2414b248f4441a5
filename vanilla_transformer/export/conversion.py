"""Marian (OPUS-MT) models as ours, and ours as Marian models, which transformers runs without this package."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.activations import ACT2FN

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.refusals import exportable, refuse_other_widths
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.translation.loading import load_tokenizer, load_weights_and_config, saved_config
from vanilla_transformer.translation.marian import (
    LAYER_NORM_EPS,
    MARIAN,
    Weights,
    fresh,
    reordered,
    their_name,
)

OURS = VanillaTransformerConfig.model_type

# Settings of `generate` that only our models know.
_OWN_SETTINGS = ("length_penalty_type", "max_length_beyond_source")


@dataclass(frozen=True)
class Converted:
    """A model of another type with the same logits, its tokenizer, and remarks for the user."""

    model: MarianMTModel | VanillaTransformerForConditionalGeneration
    tokenizer: PreTrainedTokenizerBase
    remarks: list[str]

    def save(self, output: Path) -> None:
        """Writes the model directory."""
        self.model.save_pretrained(output)
        self.tokenizer.save_pretrained(output)


def convert(source: str | Path) -> Converted:
    """Converts a Marian model to ours, or our model to Marian."""
    config = saved_config(source)
    if config.model_type not in (MARIAN, OURS):
        raise ModelError(
            f"{source} is a {config.model_type} model, which cannot be converted; supported types: {MARIAN}, {OURS}."
        )
    model = load_weights_and_config(source, torch.float32)
    assert isinstance(model, VanillaTransformerForConditionalGeneration)  # As which a Marian model is loaded.
    tokenizer = load_tokenizer(source)
    if config.model_type == OURS:
        return as_marian(model, tokenizer)
    dropped = [name for name in ("encoder_layerdrop", "decoder_layerdrop") if getattr(config, name, 0)]
    remarks = [f"{name} is dropped: the paper's model has none, and it acts in training alone." for name in dropped]
    return Converted(model, tokenizer, remarks)


def as_marian(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Converted:
    """Converts our model to a Marian model, which transformers loads without this package.

    Marian's `generate` has neither Google's length penalty nor a length limit per sentence: it gets the library's
    penalty with the same exponent, which differs by a constant and by five tokens, and one limit for all sentences.
    """
    model = exportable(model, ACT2FN)
    marian = to_marian(model)
    settings = model.generation_config.to_diff_dict()
    own = {name: settings.pop(name, None) for name in _OWN_SETTINGS}
    remarks = []
    if own["length_penalty_type"] == "google":
        remarks.append("Marian has no Google length penalty: the library's is used, with the same exponent.")
    if own["max_length_beyond_source"] is not None:
        settings["max_length"] = model.config.max_position_embeddings
        remarks.append(
            f"Marian has one length limit for all sentences: max_length is set to {settings['max_length']}."
        )
    marian.generation_config = fresh(settings)
    return Converted(marian, _without_our_class(tokenizer), remarks)


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


@torch.no_grad()
def to_marian(model: VanillaTransformerForConditionalGeneration) -> MarianMTModel:
    """Converts our model to a Marian model with the same logits."""
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
    marian.load_state_dict(state)
    return marian.eval()


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
