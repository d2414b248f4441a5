"""The model computes what torch's own layers compute with the same weights: logits and gradients."""

import pytest
import torch
from small_models import IDS, MASK, inputs_of, random_model
from torch import nn

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.modeling_vanilla_transformer import MultiHeadAttention, PositionalEncoding

SOURCE = torch.tensor([[5, 9, 7, 8, 2], [11, 4, 2, 0, 0]])
LABELS = torch.tensor([[6, 3, 12, 2], [9, 2, -100, -100]])


@pytest.fixture
def model() -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(1)
    config = VanillaTransformerConfig(
        vocab_size=24,
        d_model=16,
        d_ff=40,
        num_heads=4,
        encoder_layers=2,
        decoder_layers=3,
        dropout=0.0,
        label_smoothing=0.0,
        attention_bias=True,
        layer_norm_eps=1e-5,
    )
    model = VanillaTransformerForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # Biases and norms must be seen too.
    return model


def copy_linear(ours: nn.Linear, theirs: nn.Linear) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_norm(ours: nn.LayerNorm, theirs: nn.LayerNorm) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_attention_to_torch(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
    copy_linear(ours.out_proj, theirs.out_proj)


def torch_transformer(model: VanillaTransformerForConditionalGeneration) -> nn.Transformer:
    config = model.config
    theirs = nn.Transformer(
        config.d_model,
        config.num_heads,
        config.encoder_layers,
        config.decoder_layers,
        config.d_ff,
        dropout=0.0,
        batch_first=True,
    )
    theirs.encoder.norm = theirs.decoder.norm = None  # A post-norm stack ends in its last layer's own norm.
    with torch.no_grad():
        for ours, other in zip(model.model.encoder.layers, theirs.encoder.layers, strict=True):
            copy_attention_to_torch(ours.self_attention, other.self_attn)
            copy_norm(ours.self_attention_norm, other.norm1)
            copy_norm(ours.feed_forward_norm, other.norm2)
        for ours, other in zip(model.model.decoder.layers, theirs.decoder.layers, strict=True):
            copy_attention_to_torch(ours.self_attention, other.self_attn)
            copy_attention_to_torch(ours.cross_attention, other.multihead_attn)
            copy_norm(ours.self_attention_norm, other.norm1)
            copy_norm(ours.cross_attention_norm, other.norm2)
            copy_norm(ours.feed_forward_norm, other.norm3)
        for stack in ("encoder", "decoder"):
            for ours, other in zip(getattr(model.model, stack).layers, getattr(theirs, stack).layers, strict=True):
                copy_linear(ours.feed_forward.w_1, other.linear1)
                copy_linear(ours.feed_forward.w_2, other.linear2)
    return theirs


def test_logits_and_gradients_equal_those_of_torch(model):
    theirs = torch_transformer(model)
    embedding = nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    encode = PositionalEncoding(model.config)

    def embed(ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, embedding) * model.config.d_model**0.5 + encode(ids.shape[1])

    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(LABELS)
    states = theirs(
        embed(SOURCE),
        embed(decoder_input_ids),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(LABELS.shape[1]),
        src_key_padding_mask=SOURCE == 0,
        memory_key_padding_mask=SOURCE == 0,
        tgt_is_causal=True,
    )
    expected = states @ embedding.T
    nn.functional.cross_entropy(expected.flatten(0, 1), LABELS.flatten()).backward()
    outputs = model(input_ids=SOURCE, attention_mask=(SOURCE != 0).long(), labels=LABELS)
    outputs.loss.backward()

    torch.testing.assert_close(outputs.logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.get_input_embeddings().weight.grad, embedding.grad, atol=1e-5, rtol=1e-5)
    for stack in ("encoder", "decoder"):
        for ours, other in zip(getattr(model.model, stack).layers, getattr(theirs, stack).layers, strict=True):
            packed = torch.cat(
                [
                    p.weight.grad
                    for p in (ours.self_attention.q_proj, ours.self_attention.k_proj, ours.self_attention.v_proj)
                ]
            )
            torch.testing.assert_close(packed, other.self_attn.in_proj_weight.grad, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                ours.feed_forward.w_1.weight.grad, other.linear1.weight.grad, atol=1e-5, rtol=1e-5
            )


@pytest.mark.parametrize("kind", ["masked-language-model", "language-model"])
def test_logits_and_gradients_of_one_stack_equal_those_of_torch(kind: str):
    """A decoder without a source is an encoder that never looks ahead."""
    ours = random_model(kind, attention_bias=True, layer_norm_eps=1e-5)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    embedding = nn.Parameter(ours.get_input_embeddings().weight.detach().clone())
    with torch.no_grad():
        for our, their in zip(ours.model.layers, theirs.layers, strict=True):
            copy_attention_to_torch(our.self_attention, their.self_attn)
            copy_norm(our.self_attention_norm, their.norm1)
            copy_linear(our.feed_forward.w_1, their.linear1)
            copy_linear(our.feed_forward.w_2, their.linear2)
            copy_norm(our.feed_forward_norm, their.norm2)
    inputs = inputs_of(kind)
    embedded = nn.functional.embedding(IDS, embedding) * 32**0.5 + PositionalEncoding(ours.config)(6)
    causal = kind == "language-model"
    future = nn.Transformer.generate_square_subsequent_mask(6) if causal else None
    padding = torch.zeros(2, 6).masked_fill(MASK == 0, -float("inf"))
    expected = theirs(embedded, mask=future, src_key_padding_mask=padding, is_causal=causal) @ embedding.T
    kept = slice(-1) if causal else slice(None)
    labels = inputs["labels"][:, 1:] if causal else inputs["labels"]
    loss = nn.functional.cross_entropy(expected[:, kept].flatten(0, 1), labels.flatten())
    loss.backward()
    found = ours(**inputs)
    found.loss.backward()
    torch.testing.assert_close(found.logits[MASK.bool()], expected[MASK.bool()], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.loss, loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.get_input_embeddings().weight.grad, embedding.grad, atol=1e-5, rtol=1e-5)
    for our, their in zip(ours.model.layers, theirs.layers, strict=True):
        torch.testing.assert_close(our.feed_forward.w_2.weight.grad, their.linear2.weight.grad, atol=1e-5, rtol=1e-5)
