"""Properties of every family and head for any weights."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from refusals import refused
from small_models import HEADS, IDS, MASK, inputs_of, random_model
from torch import nn
from transformers import DynamicCache

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerDecoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer import CACHE_FIELD, Dropout

TARGET = torch.tensor([[1, 6, 3, 12, 30], [1, 9, 7, 7, 40]])
KINDS, ATTENTION = list(HEADS), ["eager", "sdpa"]
# Those whose output projection is their embedding.
WORDS = ["translator", "masked-language-model", "language-model"]


def given(kind: str, ids: torch.Tensor = IDS, mask: torch.Tensor = MASK) -> dict[str, torch.Tensor]:
    """Inputs of a forward pass without a loss."""
    decoder = {"decoder_input_ids": TARGET[: len(ids)]} if kind == "translator" else {}
    return {"input_ids": ids, "attention_mask": mask, **decoder}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str, side: str):
    for pooling in ["mean", "first"] if kind == "classifier" else [None]:
        model = random_model(kind, **({"classifier_pooling": pooling} if pooling else {}))
        # Not the pad token: the mask alone decides.
        tokens, padding = IDS[:1, :4], torch.full((1, 3), 33)
        parts, masks = [tokens, padding], [torch.ones(1, 4), torch.zeros(1, 3)]
        if side == "left":
            parts.reverse()
            masks.reverse()
        mask = torch.cat(masks, 1).long()
        padded = model(**given(kind, torch.cat(parts, 1), mask)).logits
        alone = model(**given(kind, tokens, torch.ones(1, 4))).logits
        if kind not in ("classifier", "translator"):
            padded = padded[mask.bool()][None]
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)


def test_left_padding_of_the_target_changes_nothing():
    model = random_model("translator")
    alone = model(input_ids=IDS[:1], decoder_input_ids=TARGET[:1]).logits
    padded = model(
        input_ids=IDS[:1],
        decoder_input_ids=torch.cat((torch.zeros(1, 3, dtype=torch.long), TARGET[:1]), 1),
        decoder_attention_mask=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]),
    ).logits
    torch.testing.assert_close(alone, padded[:, 3:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", WORDS)
def test_future_tokens_change_nothing_in_a_decoder_and_all_in_an_encoder(kind: str):
    model, before = random_model(kind), given(kind, mask=torch.ones_like(IDS))
    name = "decoder_input_ids" if kind == "translator" else "input_ids"
    changed = before[name].clone()
    changed[:, 3:] = 17
    differences = (model(**before).logits - model(**{**before, name: changed}).logits).abs()
    assert differences[:, 3:].max() > 1e-3
    past = differences[:, :3].max()
    assert past > 1e-3 if kind == "masked-language-model" else past < 1e-6


@pytest.mark.parametrize("fields", [{"d_k": 5, "d_v": 11}, {"positional_encoding": "learned"}], ids=str)
@pytest.mark.parametrize("implementation", [*ATTENTION, "flex_attention"])
@torch.compiler.set_stance("force_eager")  # Kernels of flex attention take a minute to compile on a CPU.
@torch.no_grad()
def test_cached_decoding_equals_uncached(implementation: str, fields: dict):
    translator = random_model("translator", **fields)
    translator.set_attn_implementation(implementation)
    encoded, cache, steps = translator.get_encoder()(input_ids=IDS, attention_mask=MASK), None, []
    for tokens in TARGET.split(1, dim=1):
        outputs = translator(
            encoder_outputs=encoded,
            attention_mask=MASK,
            decoder_input_ids=tokens,
            cache=cache,
            use_cache=True,
        )
        cache = outputs[CACHE_FIELD]
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, 1), translator(**given("translator")).logits, atol=1e-5, rtol=0)
    filled = translator(**given("translator"), cache=DynamicCache()).logits  # It has no place for the source.
    torch.testing.assert_close(torch.cat(steps, 1), filled, atol=1e-5, rtol=0)

    model = random_model("language-model", **fields)
    model.set_attn_implementation(implementation)
    ids, mask, cache, steps = IDS.flip(1), MASK.flip(1), None, []
    for start, end in ((0, 3), (3, 4), (4, 6)):
        outputs = model(ids[:, start:end], mask[:, :end], cache=cache, use_cache=True)
        cache = outputs[CACHE_FIELD]
        steps.append(outputs.logits)
    whole = model(ids, mask).logits
    torch.testing.assert_close(torch.cat(steps, 1)[mask.bool()], whole[mask.bool()], atol=1e-5, rtol=0)


def test_texts_packed_into_a_row_are_as_on_their_own():
    model = random_model("language-model")
    first, second = IDS[:1, :4], IDS[1:, :3]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    packed = model(torch.cat((first, second), 1), position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed[:, :4], model(first).logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed[:, 4:], model(second).logits, atol=1e-5, rtol=0)


def test_poolings_read_what_they_say():
    states = random_model("classifier").model(IDS, MASK).last_hidden_state
    means = torch.stack([states[0].mean(0), states[1, :3].mean(0)])
    for pooling, expected in (("first", states[:, 0]), ("mean", means)):
        model = random_model("classifier", classifier_pooling=pooling)
        torch.testing.assert_close(model(IDS, MASK).logits, model.classifier(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_over_what_counts_and_smoothed_in_training_alone(kind: str):
    model, inputs = random_model(kind, label_smoothing=0.1), inputs_of(kind)
    labels = inputs["labels"][:, 1:] if kind == "language-model" else inputs["labels"]
    for mode in (True, False):
        outputs = model.train(mode)(**inputs)
        logits = outputs.logits[:, :-1] if kind == "language-model" else outputs.logits
        flat = logits.reshape(labels.numel(), -1), labels.flatten()
        expected = nn.functional.cross_entropy(*flat, label_smoothing=0.1 if mode else 0.0)
        torch.testing.assert_close(outputs.loss, expected)


@pytest.mark.parametrize("kind", WORDS)
def test_loss_without_logits_has_the_same_value_and_gradients(kind: str):
    model, found = random_model(kind, label_smoothing=0.1, output_bias=True).train(), []
    inputs = inputs_of(kind)
    inputs["labels"][0, 1:3] = -100
    for skip_logits in (True, False):
        model.zero_grad()
        outputs = model(**inputs, skip_logits=skip_logits)
        assert (outputs.logits is None) == skip_logits
        outputs.loss.backward()
        found.append([outputs.loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs, skip_logits=skip_logits).loss, found[-1][0])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_shifted_labels_stand_where_they_are_predicted():
    model = random_model("language-model")
    shifted = torch.cat((IDS[:1, 1:], torch.tensor([[-100]])), 1)
    for skip_logits in (True, False):
        found = model(IDS[:1], shift_labels=shifted, skip_logits=skip_logits).loss
        torch.testing.assert_close(found, model(IDS[:1], labels=IDS[:1]).loss)


def test_rows_without_masked_tokens_have_no_loss_and_no_gradient():
    model, nothing = random_model("masked-language-model"), torch.full_like(IDS, -100)
    losses = [model(IDS, MASK, labels=nothing, skip_logits=skip_logits).loss for skip_logits in (True, False)]
    losses[0].backward()
    assert losses == [0, 0] and not model.model.embed_tokens.weight.grad.any()


@pytest.mark.parametrize(
    ("labels", "count", "kind"),
    [
        (torch.tensor([2, 0]), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), 3, "multi_label_classification"),
        (torch.tensor([0.5, -1.0]), 1, "regression"),
    ],
)
def test_labels_say_which_problem_it_is_as_in_the_library(labels: torch.Tensor, count: int, kind: str):
    model = random_model("classifier", num_labels=count)
    outputs = model(IDS, MASK, labels=labels)
    assert model.config.problem_type == kind
    expected = {
        "single_label_classification": nn.functional.cross_entropy,
        "multi_label_classification": nn.functional.binary_cross_entropy_with_logits,
        "regression": lambda logits, labels: nn.functional.mse_loss(logits[:, 0], labels),
    }[kind](outputs.logits, labels)
    torch.testing.assert_close(outputs.loss, expected)
    halves = [
        model(IDS[row:][:1], MASK[row:][:1], labels=labels[row:][:1], num_items_in_batch=labels.numel()).loss
        for row in range(2)
    ]
    torch.testing.assert_close(sum(halves), expected)
    with refused(ValueError, "(2, 5)"):
        random_model("classifier", num_labels=5, problem_type="regression")(IDS, labels=torch.tensor([0.5, 1.0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_a_users_own_takes_the_place_of_ours(kind: str):
    model, asked = random_model(kind), []

    def own(logits, labels, **named):
        asked.append(named)
        return logits.sum() * 0 + 7

    model.loss_function = own
    for settings in ({}, {"skip_logits": True}) if kind in WORDS else ({},):
        assert model(**inputs_of(kind), **settings, num_items_in_batch=9).loss == 7
        assert asked.pop()["num_items_in_batch"] == 9

    class Another(torch.nn.Module):
        def forward(self, logits, labels, **named):
            return logits.sum() * 0 + 8

    model.loss_function = Another()
    assert model(**inputs_of(kind)).loss == 8


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_draws_the_same_dropout_and_changes_no_gradient(kind: str, reentrant: bool):
    model, gradients = random_model(kind, dropout=0.1).train(), []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(7)
        model.zero_grad()
        model(**inputs_of(kind)).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_attention_of_every_layer_are_there(kind: str):
    model = random_model(kind)
    model.set_attn_implementation("eager")
    outputs = model(**given(kind), output_attentions=True, output_hidden_states=True)
    sides = ("encoder_attentions", "decoder_attentions", "cross_attentions")
    maps = [outputs[name] for name in sides] if kind == "translator" else [outputs.attentions]
    states = outputs.encoder_hidden_states if kind == "translator" else outputs.hidden_states
    assert len(states) == 3 and all(len(layers) == 2 for layers in maps)
    for weights in [one for layers in maps for one in layers]:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    # Padding gets no weight, and what follows has some where there is no causal mask.
    assert maps[0][0][1, :, :3, 3:].max() == 0
    assert (maps[0][0][0].triu(1).max() == 0) == (kind == "language-model")
    assert kind != "translator" or maps[2][0][1, :, :, 3:].max() == maps[1][0].triu(1).max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_and_tuples_are_as_ids_and_dictionaries(kind: str):
    model, inputs = random_model(kind), inputs_of(kind)
    outputs = model(**inputs)
    embedded = {**inputs, "input_ids": None, "inputs_embeds": model.get_input_embeddings()(IDS)}
    torch.testing.assert_close(model(**embedded).logits, outputs.logits)
    loss, logits = model(**inputs, return_dict=False)[:2]
    assert torch.equal(loss, outputs.loss) and torch.equal(logits, outputs.logits)
    with refused(ValueError, "ids", "embeddings"):
        model(**{**inputs, "input_ids": None})


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_of_another_length_than_its_tokens_is_refused(kind: str):
    """One of length 1 would be broadcast in silence."""
    model, inputs, mask = random_model(kind), given(kind, IDS[:1]), torch.ones(1, 1, dtype=torch.long)
    with refused(ValueError, "1 tokens", "6"):
        model(**{**inputs, "attention_mask": mask})
    if kind == "translator":
        with refused(ValueError, "1 tokens", "5"):
            model(**{**inputs, "attention_mask": None, "decoder_attention_mask": mask})
        with refused(ValueError, "1 tokens", "6"):
            model(encoder_outputs=model.get_encoder()(IDS[:1]), decoder_input_ids=TARGET[:1], attention_mask=mask)


def test_positions_of_a_callers_own_are_refused():
    model = random_model("translator")
    for name in ("position_ids", "decoder_position_ids"):
        positions = {name: torch.tensor([[0, 1, 0, 1, 2]] * 2)}
        with refused(ValueError, name):
            model(**given("translator"), **positions)
        with refused(ValueError, name):
            model.generate(IDS, attention_mask=MASK, **positions)
    with refused(ValueError, "position_ids"):
        random_model("masked-language-model")(IDS, position_ids=torch.arange(6)[None])


def test_learned_positions_end_where_they_end():
    for kind in KINDS:
        model = random_model(kind, positional_encoding="learned", max_position_embeddings=6)
        for padding in (0, 10):
            mask = nn.functional.pad(MASK, (0, padding))
            assert model(**given(kind, nn.functional.pad(IDS, (0, padding)), mask)).logits is not None
        with refused(ValueError, "7", "6"):
            model(**given(kind, torch.full((2, 7), 5), torch.ones(2, 7)))
        if kind == "translator":
            for prefix in (1, 3):
                asked = {"decoder_input_ids": TARGET[:, :prefix], "suppress_tokens": [0, 2]}
                assert model.generate(IDS, attention_mask=MASK, **asked).shape[1] == 6 + 1
        if kind == "language-model":
            with refused(ValueError, "7", "6"):
                model(IDS, position_ids=torch.arange(1, 7)[None])
            with refused(ValueError, "7", "6"):
                model.generate(IDS[:1, :4], max_new_tokens=4, min_new_tokens=4)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("implementation", ATTENTION)
def test_each_dropout_acts_in_training_alone_and_two_are_off_by_default(name: str, implementation: str):
    for kind in ("translator", "classifier", "language-model"):
        assert (getattr(HEADS[kind].config_class(), name) == 0.1) == (name == "dropout")
        model = random_model(kind, **{name: 0.5})
        model.set_attn_implementation(implementation)
        assert torch.equal(model(**given(kind)).logits, model(**given(kind)).logits)
        model.train()
        assert not torch.equal(model(**given(kind)).logits, model(**given(kind)).logits)
    # As tools find dropout, to switch it off.
    model = random_model("translator", dropout=0.5).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0
    assert torch.equal(model(**given("translator")).logits, model(**given("translator")).logits)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_dropout_keeps_the_share_and_the_mean_it_should(p: float):
    torch.manual_seed(0)
    x = torch.ones(1001, 333, requires_grad=True)
    dropout = Dropout(p)
    y = dropout(x)
    y.sum().backward()
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=3e-3)
    assert y.mean().item() == pytest.approx(float(p < 1), abs=3e-3)
    assert torch.equal(x.grad, y.detach())
    kept_together = ((y[:, :-1] != 0) & (y[:, 1:] != 0)).float().mean().item()
    assert kept_together == pytest.approx((1 - p) ** 2, abs=3e-3)  # Neighbours share a random number, not a fate.
    assert dropout.eval()(x) is x


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_vocabulary_is_that_of_input_and_output(kind: str, tmp_path):
    for fields in ({}, {"tie_word_embeddings": False}) if kind in WORDS else ({},):
        model = random_model(kind, **fields)
        before = model(**given(kind)).logits
        model.resize_token_embeddings(60)
        after = model(**given(kind)).logits
        assert kind not in WORDS or after.shape[-1] == model.config.vocab_size == 60
        torch.testing.assert_close(after[..., : before.shape[-1]], before)
        model.save_pretrained(tmp_path)
        assert torch.equal(type(model).from_pretrained(tmp_path)(**given(kind)).logits, after)


@pytest.mark.parametrize("kind", WORDS)
def test_one_matrix_is_embedding_and_output_and_registered_once(kind: str):
    model, untied = random_model(kind), random_model(kind, tie_word_embeddings=False)
    matrices = 2 if kind == "translator" else 1
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert untied.num_parameters() - model.num_parameters() == matrices * 48 * 32
    embeddings = [name for name, one in model.named_modules(remove_duplicate=False) if isinstance(one, nn.Embedding)]
    assert embeddings == ["model.shared" if kind == "translator" else "model.embed_tokens"]


@pytest.mark.parametrize("other", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_has_an_embedding_of_its_own_that_its_encoder_takes_along(tied: bool, other):
    model = random_model("translator", tie_word_embeddings=tied)
    twin, expected = other(model), model(**given("translator")).logits
    states = model.get_encoder()(IDS).last_hidden_state
    assert twin.model.encoder.embed_tokens is twin.model.shared is not model.model.shared
    encoder = other(model).get_encoder()
    with torch.no_grad():
        twin.model.shared.weight.zero_()
    assert torch.equal(model(**given("translator")).logits, expected)
    assert torch.equal(encoder(IDS).last_hidden_state, states)


def test_a_model_is_freed_at_once():
    """Without the garbage collector, which does not know of an accelerator's memory."""
    model = random_model("translator")
    model(**given("translator"))
    freed = weakref.ref(model.model.shared)
    gc.disable()
    try:
        del model
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("by", ["configuration", "another embedding"])
def test_untied_weights_are_saved_as_they_are(by, tmp_path):
    model = random_model("translator")
    if by == "configuration":
        model.config.tie_word_embeddings = False
    else:
        model.set_input_embeddings(nn.Embedding(48, 32))
    expected = model(**inputs_of("translator")).logits
    model.save_pretrained(tmp_path / "saved")
    # As a Trainer saves.
    model.save_pretrained(tmp_path / "by a trainer", state_dict=model.state_dict())
    for name in ("saved", "by a trainer"):
        loaded, report = type(model).from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values())
        assert torch.equal(loaded(**inputs_of("translator")).logits, expected)


def test_configurations_that_would_be_computed_in_another_way_are_refused():
    with refused(ValueError, "add_cross_attention"):
        VanillaTransformerDecoderConfig(add_cross_attention=True)
    with refused(ValueError, "right to left"):
        VanillaTransformerConfig(target_direction="right-to-left")
