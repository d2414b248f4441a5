"""The models compute what torch's own layers compute with the same weights: logits, losses and gradients."""

import pytest
import torch
from small_models import IDS, MASK, inputs_of, random_model
from torch import nn

from vanilla_transformer.model.modeling_vanilla_transformer import PositionalEncoding

FUTURE = nn.Transformer.generate_square_subsequent_mask


@torch.no_grad()
def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    """Copies the weights of a layer to torch's, whose parts have other names."""
    attentions = {"self_attn": ours.self_attention}
    norms = [ours.self_attention_norm, ours.feed_forward_norm]
    if hasattr(theirs, "multihead_attn"):
        attentions["multihead_attn"] = ours.cross_attention
        norms.insert(1, ours.cross_attention_norm)
    parts = {"linear1": ours.feed_forward.w_1, "linear2": ours.feed_forward.w_2}
    parts |= {f"norm{number}": norm for number, norm in enumerate(norms, 1)}
    for name, attention in attentions.items():
        parts[f"{name}.out_proj"] = attention.out_proj
        for kind in ("weight", "bias"):
            packed = [getattr(part, kind) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
            getattr(getattr(theirs, name), f"in_proj_{kind}").copy_(torch.cat(packed))
    for name, part in parts.items():
        theirs.get_submodule(name).load_state_dict(part.state_dict())


@pytest.mark.parametrize("kind", ["translator", "masked-language-model", "language-model"])
def test_logits_losses_and_gradients_equal_those_of_torch(kind: str):
    """A post-norm stack ends in its last layer's norm; a decoder without a source is an encoder that looks back."""
    ours, inputs, causal = (
        random_model(kind, attention_bias=True, layer_norm_eps=1e-5),
        inputs_of(kind),
        kind[0] == "l",
    )
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # Biases and norms must be seen too.
    embedding = nn.Parameter(ours.get_input_embeddings().weight.detach().clone())

    def embed(ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, embedding) * 32**0.5 + PositionalEncoding(ours.config)(ids.shape[1])

    padding, labels = torch.zeros(2, 6).masked_fill(MASK == 0, -float("inf")), inputs["labels"]
    if kind == "translator":
        theirs = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        theirs.encoder.norm = theirs.decoder.norm = None
        stacks = [(ours.model.encoder, theirs.encoder), (ours.model.decoder, theirs.decoder)]
    else:
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        stacks = [(ours.model, theirs)]
    layers = [pair for our, their in stacks for pair in zip(our.layers, their.layers, strict=True)]
    for our, their in layers:
        copy_layer(our, their)
    if kind == "translator":
        target, masks = ours.prepare_decoder_input_ids_from_labels(labels), {"tgt_mask": FUTURE(labels.shape[1])}
        masks |= {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_is_causal": True}
        states = theirs(embed(IDS), embed(target), **masks)
    else:
        mask = FUTURE(6) if causal else None
        states = theirs(embed(IDS), mask=mask, src_key_padding_mask=padding, is_causal=causal)
    expected = states @ embedding.T
    predicted, labels = (expected[:, :-1], labels[:, 1:]) if causal else (expected, labels)
    loss = nn.functional.cross_entropy(predicted.flatten(0, 1), labels.flatten())
    loss.backward()
    found = ours(**inputs)
    found.loss.backward()

    there = slice(None) if kind == "translator" else MASK.bool()
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(found.logits[there], expected[there], **close)
    torch.testing.assert_close(found.loss, loss, **close)
    torch.testing.assert_close(ours.get_input_embeddings().weight.grad, embedding.grad, **close)
    for our, their in layers:
        packed = [part.weight.grad for name, part in our.self_attention.named_children() if name != "out_proj"]
        torch.testing.assert_close(torch.cat(packed), their.self_attn.in_proj_weight.grad, **close)
        torch.testing.assert_close(our.feed_forward.w_1.weight.grad, their.linear1.weight.grad, **close)
