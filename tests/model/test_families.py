"""Properties of encoder-only and decoder-only models for any weights."""

from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

from vanilla_transformer import (
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerDecoderModel,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
    VanillaTransformerEncoderModel,
)
from vanilla_transformer.model.modeling_vanilla_transformer import PositionalEncoding

IDS = torch.tensor([[5, 9, 7, 8, 2, 30], [11, 4, 2, 0, 0, 0]])
MASK = (IDS != 0).long()
SIZES: dict[str, Any] = {"vocab_size": 48, "d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0}
HEADS = [
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
    VanillaTransformerDecoderForCausalLM,
]


def build(kind: type, **fields: Any) -> Any:
    torch.manual_seed(0)
    layers = {"decoder_layers": 2} if "Decoder" in kind.__name__ else {"encoder_layers": 2}
    return kind(kind.config_class(**{**SIZES, **layers, **fields})).eval()


def shaken(model: Any) -> Any:
    """Biases and norms must be seen too."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def copy(ours: Any, theirs: Any) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def projections(attention: Any, part: str) -> torch.Tensor:
    return torch.cat([getattr(getattr(attention, f"{name}_proj"), part) for name in "qkv"])


def test_logits_and_gradients_of_the_encoder_equal_those_of_torch():
    ours = shaken(build(VanillaTransformerEncoderForMaskedLM, attention_bias=True, layer_norm_eps=1e-5))
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=False)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    embedding = nn.Parameter(ours.get_input_embeddings().weight.detach().clone())
    with torch.no_grad():
        for our, their in zip(ours.model.layers, theirs.layers, strict=True):
            their.self_attn.in_proj_weight.copy_(projections(our.self_attention, "weight"))
            their.self_attn.in_proj_bias.copy_(projections(our.self_attention, "bias"))
            copy(our.self_attention.out_proj, their.self_attn.out_proj)
            copy(our.self_attention_norm, their.norm1)
            copy(our.feed_forward.w_1, their.linear1)
            copy(our.feed_forward.w_2, their.linear2)
            copy(our.feed_forward_norm, their.norm2)
    labels = IDS.roll(1, 1).masked_fill(MASK == 0, -100)
    embedded = nn.functional.embedding(IDS, embedding) * 32**0.5 + PositionalEncoding(ours.config)(6)
    logits = theirs(embedded, src_key_padding_mask=MASK == 0) @ embedding.T
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    found = ours(IDS, MASK, labels=labels)
    found.loss.backward()
    torch.testing.assert_close(found.logits[MASK.bool()], logits[MASK.bool()], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.loss, loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.get_input_embeddings().weight.grad, embedding.grad, atol=1e-5, rtol=1e-5)
    for our, their in zip(ours.model.layers, theirs.layers, strict=True):
        attention = torch.cat([getattr(our.self_attention, f"{name}_proj").weight.grad for name in "qkv"])
        torch.testing.assert_close(attention, their.self_attn.in_proj_weight.grad, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(our.feed_forward.w_2.weight.grad, their.linear2.weight.grad, atol=1e-5, rtol=1e-5)


def test_logits_and_gradients_of_the_decoder_equal_those_of_the_first_gpt():
    """Which had no factor on its embedding: with one of its own for its input, the factor stands in that."""
    options = {"positional_encoding": "learned", "max_position_embeddings": 16, "activation_function": "gelu_new"}
    biases = {"attention_bias": True, "layer_norm_eps": 1e-5}
    ours = shaken(build(VanillaTransformerDecoderForCausalLM, d_ff=128, **options, **biases))
    settings = {
        "n_positions": 16,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "afn": "gelu",
        "tie_word_embeddings": False,
    }
    no_dropout = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    theirs = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=48, **settings, **no_dropout))
    with torch.no_grad():
        theirs.transformer.tokens_embed.weight.copy_(ours.model.embed_tokens.weight * 32**0.5)
        theirs.transformer.positions_embed.weight.copy_(ours.model.positional_encoding.learned.weight)
        theirs.lm_head.weight.copy_(ours.lm_head.weight)
        for our, their in zip(ours.model.layers, theirs.transformer.h, strict=True):
            their.attn.c_attn.weight.copy_(projections(our.self_attention, "weight").T)
            their.attn.c_attn.bias.copy_(projections(our.self_attention, "bias"))
            for module, other in (
                (our.self_attention.out_proj, their.attn.c_proj),
                (our.feed_forward.w_1, their.mlp.c_fc),
                (our.feed_forward.w_2, their.mlp.c_proj),
            ):
                other.weight.copy_(module.weight.T)
                other.bias.copy_(module.bias)
            copy(our.self_attention_norm, their.ln_1)
            copy(our.feed_forward_norm, their.ln_2)
    found, expected = ours(IDS[:1], labels=IDS[:1]), theirs(IDS[:1], labels=IDS[:1])
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.loss, expected.loss, atol=1e-5, rtol=1e-5)
    found.loss.backward()
    expected.loss.backward()
    embedding = theirs.lm_head.weight.grad + 32**0.5 * theirs.transformer.tokens_embed.weight.grad
    torch.testing.assert_close(ours.model.embed_tokens.weight.grad, embedding, atol=1e-5, rtol=1e-5)
    learned = ours.model.positional_encoding.learned.weight.grad
    torch.testing.assert_close(learned, theirs.transformer.positions_embed.weight.grad, atol=1e-5, rtol=1e-5)
    for our, their in zip(ours.model.layers, theirs.transformer.h, strict=True):
        attention = torch.cat([getattr(our.self_attention, f"{name}_proj").weight.grad for name in "qkv"])
        torch.testing.assert_close(attention.T, their.attn.c_attn.weight.grad, atol=1e-5, rtol=1e-5)


def test_one_matrix_is_embedding_and_output():
    for kind in (VanillaTransformerEncoderForMaskedLM, VanillaTransformerDecoderForCausalLM):
        model = build(kind)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        untied = build(kind, tie_word_embeddings=False)
        assert untied.num_parameters() - model.num_parameters() == 48 * 32


def test_a_decoder_has_no_attention_to_a_source():
    model = build(VanillaTransformerDecoderForCausalLM)
    assert not [name for name, _ in model.named_parameters() if "cross" in name]
    encoder = build(VanillaTransformerEncoderForMaskedLM)
    assert model.num_parameters() == encoder.num_parameters()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_future_tokens_change_nothing_in_a_decoder_and_all_in_an_encoder(implementation: str):
    changed = IDS.clone()
    changed[:, 4:] = 17
    for kind in (VanillaTransformerEncoderModel, VanillaTransformerDecoderModel):
        model = build(kind)
        model.set_attn_implementation(implementation)
        before, after = model(IDS).last_hidden_state[:, :4], model(changed).last_hidden_state[:, :4]
        difference = (before - after).abs().max()
        assert difference == 0 if kind is VanillaTransformerDecoderModel else difference > 1e-2


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", HEADS)
def test_padding_changes_nothing(kind: type, side: str, implementation: str):
    poolings = ["mean", "first"] if kind is VanillaTransformerEncoderForSequenceClassification else [None]
    for pooling in poolings:
        model = build(kind, **({"classifier_pooling": pooling} if pooling else {}))
        model.set_attn_implementation(implementation)
        tokens, padding = IDS[:1, :4], torch.full((1, 3), 33)  # Not the pad token: the mask alone decides.
        parts, masks = [tokens, padding], [torch.ones(1, 4), torch.zeros(1, 3)]
        if side == "left":
            parts.reverse()
            masks.reverse()
        mask = torch.cat(masks, 1).long()
        padded = model(torch.cat(parts, 1), mask).logits
        alone = model(tokens).logits
        padded = padded if padded.dim() == 2 else padded[mask.bool()][None]
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [1, 5, 7])
@pytest.mark.parametrize("kind", HEADS)
def test_a_mask_of_another_length_than_its_tokens_is_refused(kind: type, length: int):
    ids = torch.tensor([[5, 9, 7, 8, 6, 30]])
    with refused(ValueError, f"{length} tokens", "6"):
        build(kind)(ids, torch.ones(1, length, dtype=torch.long))


def test_poolings_read_what_they_say():
    states = build(VanillaTransformerEncoderModel)(IDS, MASK).last_hidden_state
    for pooling, expected in (
        ("first", states[:, 0]),
        ("mean", torch.stack([states[0].mean(0), states[1, :3].mean(0)])),
    ):
        model = build(VanillaTransformerEncoderForSequenceClassification, classifier_pooling=pooling)
        torch.testing.assert_close(model(IDS, MASK).logits, model.classifier(expected), atol=1e-6, rtol=0)
    with refused(ValueError, "classifier_pooling", "'last'"):
        VanillaTransformerEncoderConfig(classifier_pooling="last")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_cached_decoding_equals_uncached(implementation: str, positions: str):
    model = build(VanillaTransformerDecoderForCausalLM, positional_encoding=positions, d_k=5, d_v=11)
    model.set_attn_implementation(implementation)
    mask = MASK.flip(1)
    ids = IDS.flip(1)
    whole, cache, steps = model(ids, mask).logits, None, []
    for start, end in ((0, 3), (3, 4), (4, 6)):
        outputs = model(ids[:, start:end], mask[:, :end], past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, 1)[mask.bool()], whole[mask.bool()], atol=1e-5, rtol=0)


def test_texts_packed_into_a_row_are_as_on_their_own():
    model = build(VanillaTransformerDecoderForCausalLM)
    first, second = IDS[:1, :4], IDS[1:, :3]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    packed = model(torch.cat((first, second), 1), position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed[:, :4], model(first).logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed[:, 4:], model(second).logits, atol=1e-5, rtol=0)


def test_an_encoder_takes_no_positions_and_learned_ones_end():
    with refused(ValueError, "position_ids"):
        build(VanillaTransformerEncoderModel)(IDS, position_ids=torch.arange(6)[None])
    for kind in (VanillaTransformerEncoderModel, VanillaTransformerDecoderModel):
        model = build(kind, positional_encoding="learned", max_position_embeddings=5)
        with refused(ValueError, "6", "5"):
            model(IDS)
    with refused(ValueError, "6", "5"):
        model(IDS, position_ids=torch.arange(6)[None])


def labels_of(kind: type) -> torch.Tensor:
    if kind is VanillaTransformerEncoderForSequenceClassification:
        return torch.tensor([1, 0])
    labels = IDS.masked_fill(MASK == 0, -100)
    return labels.clamp(max=1) if kind is VanillaTransformerEncoderForTokenClassification else labels


@pytest.mark.parametrize("kind", HEADS)
def test_loss_is_the_mean_over_what_counts_of_the_whole_step(kind: type):
    labels = labels_of(kind)
    model = build(kind, label_smoothing=0.1)
    shifted = labels[:, 1:] if kind is VanillaTransformerDecoderForCausalLM else labels
    count = (shifted != -100).sum()
    gradients = []
    for mode in (True, False):
        model.train(mode).zero_grad()
        outputs = model(IDS, MASK, labels=labels)
        logits = outputs.logits[:, :-1] if kind is VanillaTransformerDecoderForCausalLM else outputs.logits
        expected = nn.functional.cross_entropy(
            logits.reshape(shifted.numel(), -1), shifted.flatten(), label_smoothing=0.1 if mode else 0.0
        )
        torch.testing.assert_close(outputs.loss, expected)
    outputs.loss.backward()
    for row in range(2):
        gradients.append(model(IDS[row:][:1], MASK[row:][:1], labels=labels[row:][:1], num_items_in_batch=count).loss)
    torch.testing.assert_close(sum(gradients), outputs.loss)
    with refused(ValueError, "48", "0"):
        model(IDS, MASK, labels=torch.full_like(labels, 48))


@pytest.mark.parametrize("kind", [VanillaTransformerEncoderForMaskedLM, VanillaTransformerDecoderForCausalLM])
def test_loss_without_logits_is_the_same(kind: type):
    model = build(kind, output_bias=True).train()
    found = []
    for skip_logits in (True, False):
        model.zero_grad()
        labels = labels_of(kind)
        labels[0, 1:3] = -100
        outputs = model(IDS, MASK, labels=labels, skip_logits=skip_logits)
        assert (outputs.logits is None) == skip_logits
        outputs.loss.backward()
        found.append([outputs.loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_rows_without_masked_tokens_have_no_loss_and_no_gradient():
    model = build(VanillaTransformerEncoderForMaskedLM)
    nothing = torch.full_like(IDS, -100)
    losses = [model(IDS, MASK, labels=nothing, skip_logits=skip_logits).loss for skip_logits in (True, False)]
    losses[0].backward()
    assert losses == [0, 0] and not model.model.embed_tokens.weight.grad.any()


@pytest.mark.parametrize("skip_logits", [True, False])
def test_shifted_labels_stand_where_they_are_predicted(skip_logits: bool):
    model = build(VanillaTransformerDecoderForCausalLM)
    shifted = torch.cat((IDS[:1, 1:], torch.tensor([[-100]])), 1)
    found = model(IDS[:1], shift_labels=shifted, skip_logits=skip_logits).loss
    torch.testing.assert_close(found, model(IDS[:1], labels=IDS[:1]).loss)


@pytest.mark.parametrize(
    ("labels", "count", "kind"),
    [
        (torch.tensor([2, 0]), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), 3, "multi_label_classification"),
        (torch.tensor([0.5, -1.0]), 1, "regression"),
    ],
)
def test_labels_say_which_problem_it_is_as_in_the_library(labels: torch.Tensor, count: int, kind: str):
    model = build(VanillaTransformerEncoderForSequenceClassification, num_labels=count)
    outputs = model(IDS, MASK, labels=labels)
    assert model.config.problem_type == kind
    logits = outputs.logits
    expected = {
        "single_label_classification": lambda: nn.functional.cross_entropy(logits, labels),
        "multi_label_classification": lambda: nn.functional.binary_cross_entropy_with_logits(logits, labels),
        "regression": lambda: nn.functional.mse_loss(logits[:, 0], labels),
    }[kind]()
    torch.testing.assert_close(outputs.loss, expected)
    halves = [
        model(IDS[row:][:1], MASK[row:][:1], labels=labels[row:][:1], num_items_in_batch=labels.numel()).loss
        for row in range(2)
    ]
    torch.testing.assert_close(sum(halves), expected)


def test_numbers_and_texts_that_do_not_match_are_refused():
    model = build(VanillaTransformerEncoderForSequenceClassification, num_labels=3, problem_type="regression")
    with refused(ValueError, "(2, 3)", "(2,)"):
        model(IDS, MASK, labels=torch.tensor([0.5, 1.0]))


@pytest.mark.parametrize("kind", HEADS)
def test_a_loss_of_a_users_own_takes_the_place_of_ours(kind: type):
    model = build(kind)
    model.loss_function = lambda logits, labels, **kwargs: logits.sum() * 0 + 7
    assert model(IDS, MASK, labels=labels_of(kind)).loss == 7


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_each_dropout_acts_in_training_alone_and_two_are_off_by_default(name: str, implementation: str):
    for kind in (VanillaTransformerEncoderModel, VanillaTransformerDecoderModel):
        assert (getattr(kind.config_class(), name) == 0.1) == (name == "dropout")
        model = build(kind, **{name: 0.5})
        model.set_attn_implementation(implementation)
        assert torch.equal(model(IDS).last_hidden_state, model(IDS).last_hidden_state)
        model.train()
        assert not torch.equal(model(IDS).last_hidden_state, model(IDS).last_hidden_state)
        with refused(ValueError, name):
            kind.config_class(**{name: 1.1})


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", HEADS)
def test_gradient_checkpointing_changes_no_gradient(kind: type, implementation: str):
    model = build(kind).train()
    model.set_attn_implementation(implementation)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(IDS, MASK, labels=labels_of(kind)).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("kind", HEADS)
def test_states_and_attention_of_every_layer_are_there(kind: type):
    model = build(kind)
    model.set_attn_implementation("eager")
    outputs = model(IDS, MASK, output_attentions=True, output_hidden_states=True)
    assert len(outputs.hidden_states) == 3 and len(outputs.attentions) == 2
    for weights in outputs.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
        assert weights[1, :, :3, 3:].max() == 0
        causal = kind is VanillaTransformerDecoderForCausalLM
        assert (weights[0].triu(1).max() == 0) == causal


@pytest.mark.parametrize("kind", HEADS)
def test_a_larger_vocabulary_is_that_of_input_and_output(kind: type):
    model = build(kind)
    before = model(IDS, MASK).logits
    model.resize_token_embeddings(60)
    after = model(IDS, MASK).logits
    if hasattr(model, "lm_head"):
        assert model.lm_head.weight is model.get_input_embeddings().weight
        assert after.shape[-1] == model.config.vocab_size == 60
    torch.testing.assert_close(after[..., : before.shape[-1]], before)


def test_presets_are_those_of_the_paper_with_one_stack():
    for config in (VanillaTransformerEncoderConfig, VanillaTransformerDecoderConfig):
        big = config.from_preset("big")
        assert (big.d_model, big.num_heads, big.dropout, big.num_hidden_layers) == (1024, 16, 0.3, 6)
        assert config.from_preset("table3-C-n2").num_hidden_layers == 2
        with refused(ValueError, "'base'"):
            config.from_preset("bass")


def test_a_decoder_alone_refuses_attention_to_a_source():
    with refused(ValueError, "add_cross_attention"):
        VanillaTransformerDecoderConfig(add_cross_attention=True)
    assert not VanillaTransformerDecoderConfig(add_cross_attention=False).is_encoder_decoder
