"""FSMT (fairseq's WMT19 models) to ours: untied matrices, two vocabularies, positions of other frequencies."""

import torch
from transformers import FSMTForConditionalGeneration

from vanilla_transformer.extras.export.weights import (
    Embeddings,
    Weights,
    blocked_bias,
    common_config,
    layer_weights,
    load,
)
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


@torch.no_grad()
def from_fsmt(fsmt: FSMTForConditionalGeneration) -> VanillaTransformerForConditionalGeneration:
    """Converts an FSMT model to ours with the same logits, for up to `max_position_embeddings` tokens.

    fairseq's sinusoids have other frequencies than the paper's, so they become the values of learned positions. Source
    and target keep their own ids; the smaller vocabulary is padded with types that never occur.

    Raises:
        ConversionError: The model has a feature that ours cannot express.
    """
    theirs = fsmt.config
    encoder, decoder = fsmt.model.encoder, fsmt.model.decoder
    embeddings = Embeddings(encoder.embed_tokens.weight, decoder.embed_tokens.weight, decoder.output_projection.weight)
    if not theirs.scale_embedding:
        embeddings = embeddings.scaled(theirs.d_model**-0.5)
    types = embeddings.output.shape[0]
    vocab_size = max(embeddings.source.shape[0], types)
    bias = blocked_bias(None, types, vocab_size)
    config = common_config(
        theirs,
        vocab_size,
        tie_word_embeddings=embeddings.tied,
        output_bias=bias is not None,
        positional_encoding="learned",
    )
    model = VanillaTransformerForConditionalGeneration(config)
    weights = layer_weights(list(model.state_dict()), fsmt.state_dict(), config.d_ff) | embeddings.weights(vocab_size)
    weights |= _positions(fsmt, config.max_position_embeddings)
    load(model, weights if bias is None else weights | {"lm_head.bias": bias})
    return model


def _positions(fsmt: FSMTForConditionalGeneration, length: int) -> Weights:
    """Returns fairseq's positions, which count from the id after the padding's."""
    padding = fsmt.model.encoder.padding_idx
    table = fsmt.model.encoder.embed_positions.get_embedding(padding + 1 + length, fsmt.config.d_model, padding)
    table = table[padding + 1 :]
    names = (f"model.{stack}.positional_encoding.learned.weight" for stack in ("encoder", "decoder"))
    return {name: table.clone() for name in names}
