"""Properties of the model for any weights."""

import copy

import pytest
import torch
from refusals import refused

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.modeling_vanilla_transformer import Decoder, Dropout, Encoder, PositionalEncoding

SOURCE = torch.tensor([[5, 9, 7, 8, 2], [11, 4, 2, 0, 0]])
MASK = (SOURCE != 0).long()
TARGET = torch.tensor([[1, 6, 3, 12, 30], [1, 9, 7, 7, 40]])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_future_tokens_do_not_change_past_logits(tiny_model, implementation: str):
    tiny_model.set_attn_implementation(implementation)
    changed = TARGET.clone()
    changed[:, 3:] = 17
    before = tiny_model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET).logits
    after = tiny_model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=changed).logits
    torch.testing.assert_close(before[:, :3], after[:, :3], atol=1e-6, rtol=0)
    assert (before[:, 3:] - after[:, 3:]).abs().max() > 1e-3


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_source_padding_changes_nothing(tiny_model, implementation: str, side: str):
    tiny_model.set_attn_implementation(implementation)
    alone = tiny_model(input_ids=SOURCE[1:, :3], decoder_input_ids=TARGET[1:]).logits
    padding = torch.full((1, 4), 33)  # Not the pad token: the mask alone decides.
    parts, masks = [SOURCE[1:, :3], padding], [torch.ones(1, 3), torch.zeros(1, 4)]
    if side == "left":
        parts.reverse()
        masks.reverse()
    padded = tiny_model(
        input_ids=torch.cat(parts, 1), attention_mask=torch.cat(masks, 1).long(), decoder_input_ids=TARGET[1:]
    ).logits
    torch.testing.assert_close(alone, padded, atol=1e-5, rtol=0)


def test_left_padding_of_the_target_changes_nothing(tiny_model):
    alone = tiny_model(input_ids=SOURCE[:1], decoder_input_ids=TARGET[:1]).logits
    padded = tiny_model(
        input_ids=SOURCE[:1],
        decoder_input_ids=torch.cat((torch.zeros(1, 3, dtype=torch.long), TARGET[:1]), 1),
        decoder_attention_mask=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]),
    ).logits
    torch.testing.assert_close(alone, padded[:, 3:], atol=1e-5, rtol=0)


def test_padded_labels_change_neither_loss_nor_gradient(tiny_model):
    labels = torch.tensor([[6, 3, 2]])
    padded = torch.tensor([[6, 3, 2, -100, -100]])
    gradients = []
    for target in (labels, padded):
        tiny_model.zero_grad()
        loss = tiny_model(input_ids=SOURCE[:1], labels=target).loss
        loss.backward()
        gradients.append((loss.detach(), tiny_model.get_input_embeddings().weight.grad.clone()))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("d_k, d_v", [(8, 8), (5, 11), (16, 3)])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cached_decoding_equals_uncached(tiny_config, implementation: str, d_k: int, d_v: int):
    torch.manual_seed(2)
    config = VanillaTransformerConfig(**{**tiny_config.to_diff_dict(), "d_k": d_k, "d_v": d_v, "decoder_layers": 3})
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.set_attn_implementation(implementation)
    whole = model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET).logits
    encoder_outputs, cache, steps = model.get_encoder()(input_ids=SOURCE, attention_mask=MASK), None, []
    for position in range(TARGET.shape[1]):
        outputs = model(
            encoder_outputs=encoder_outputs,
            attention_mask=MASK,
            decoder_input_ids=TARGET[:, position : position + 1],
            past_key_values=cache,
            use_cache=True,
        )
        cache = outputs.past_key_values
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positional_table_is_right_after_from_pretrained(tiny_model, tmp_path, dtype: torch.dtype):
    tiny_model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, dtype=dtype)
    table = loaded.model.encoder.positional_encoding(4000)
    expected = PositionalEncoding(tiny_model.config)(4000)
    assert table.dtype == torch.float32
    assert torch.equal(table, expected)


def test_bfloat16_stays_close_to_float32_at_any_length(tiny_model):
    source = torch.arange(3, 40).repeat(1, 50)[:, :1500]
    exact = tiny_model.get_encoder()(input_ids=source).last_hidden_state
    rounded = copy.deepcopy(tiny_model).bfloat16().get_encoder()(input_ids=source).last_hidden_state
    assert rounded.dtype == torch.bfloat16
    # Eight bits of mantissa in two layers: far below the distance between two positions.
    assert (rounded.float() - exact).abs().mean() < 0.03


def test_save_and_load_change_no_logit_and_save_no_table(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    loaded, report = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    inputs = {"input_ids": SOURCE, "attention_mask": MASK, "decoder_input_ids": TARGET}
    assert torch.equal(loaded(**inputs).logits, tiny_model(**inputs).logits)
    from safetensors import safe_open

    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert not [name for name in names if "position" in name]
    assert [name for name in names if ".layers." not in name] == ["model.shared.weight"]


def test_one_matrix_is_embedding_of_both_sides_and_output(tiny_model, tiny_config):
    assert tiny_model.lm_head.weight is tiny_model.model.shared.weight
    assert tiny_model.model.encoder.embed_tokens is tiny_model.model.shared
    assert tiny_model.model.decoder.embed_tokens is tiny_model.model.shared
    tiny_config.tie_word_embeddings = False
    untied = VanillaTransformerForConditionalGeneration(tiny_config)
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tiny_model.parameters())
    assert extra == 2 * tiny_config.vocab_size * tiny_config.d_model


def test_resized_vocabulary_of_three_matrices_is_that_of_all_three(tiny_config, tmp_path):
    tiny_config.tie_word_embeddings = False
    model = VanillaTransformerForConditionalGeneration(tiny_config).eval()
    model.resize_token_embeddings(60)
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path).eval()
    new = torch.tensor([[59, 2]])
    assert loaded(input_ids=new, decoder_input_ids=new).logits.shape == (1, 2, 60)
    torch.testing.assert_close(
        loaded(input_ids=new, decoder_input_ids=new).logits, model(input_ids=new, decoder_input_ids=new).logits
    )


def test_resized_vocabulary_keeps_one_matrix(tiny_model):
    tiny_model.resize_token_embeddings(60)
    assert tiny_model.lm_head.weight is tiny_model.model.decoder.embed_tokens.weight
    assert tiny_model(input_ids=SOURCE, decoder_input_ids=TARGET).logits.shape[-1] == 60


def test_learned_positions_end_where_they_end(tiny_config):
    config = VanillaTransformerConfig(
        **{**tiny_config.to_diff_dict(), "positional_encoding": "learned", "max_position_embeddings": 6}
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    assert model(input_ids=SOURCE, decoder_input_ids=TARGET).logits.shape == (2, 5, 48)
    with refused(ValueError, "7", "6"):
        model(input_ids=torch.full((1, 7), 5), decoder_input_ids=TARGET[:1])
    for prefix in (1, 3):
        settings = {"decoder_input_ids": TARGET[:, :prefix], "suppress_tokens": [0, 2]}
        assert model.generate(input_ids=SOURCE, attention_mask=MASK, **settings).shape[1] == 6 + 1


def test_accumulated_batches_give_the_gradient_of_one(tiny_model):
    labels = torch.tensor([[6, 3, 12, 2], [9, 2, -100, -100]])
    tiny_model.train()
    tiny_model(input_ids=SOURCE, attention_mask=MASK, labels=labels).loss.backward()
    expected = tiny_model.get_input_embeddings().weight.grad.clone()
    tiny_model.zero_grad()
    for row in range(2):
        tiny_model(
            input_ids=SOURCE[row : row + 1],
            attention_mask=MASK[row : row + 1],
            labels=labels[row : row + 1],
            num_items_in_batch=torch.tensor(6),
        ).loss.backward()
    torch.testing.assert_close(tiny_model.get_input_embeddings().weight.grad, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_gradient_checkpointing_changes_no_gradient(tiny_model, implementation: str):
    tiny_model.set_attn_implementation(implementation)
    labels = torch.tensor([[6, 3, 2]])
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            tiny_model.activation_checkpointing_enable()
        tiny_model.train().zero_grad()
        tiny_model(input_ids=SOURCE[:1], labels=labels).loss.backward()
        gradients.append(tiny_model.model.encoder.layers[0].feed_forward.w_1.weight.grad.clone())
    torch.testing.assert_close(*gradients)


def test_attention_maps_are_those_of_every_layer(tiny_model):
    tiny_model.set_attn_implementation("eager")
    outputs = tiny_model(
        input_ids=SOURCE,
        attention_mask=MASK,
        decoder_input_ids=TARGET,
        output_attentions=True,
        output_hidden_states=True,
    )
    assert [len(outputs[k]) for k in ("encoder_attentions", "decoder_attentions", "cross_attentions")] == [2, 2, 2]
    assert len(outputs.encoder_hidden_states) == 3
    for maps in (*outputs.encoder_attentions, *outputs.decoder_attentions, *outputs.cross_attentions):
        torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps.sum(-1)))
    assert outputs.cross_attentions[0][1, :, :, 3:].max() == 0  # Padding gets no weight.


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_keeps_the_share_and_the_mean_it_should(p: float):
    torch.manual_seed(0)
    x = torch.ones(1001, 333, requires_grad=True)
    dropout = Dropout(p)
    y = dropout(x)
    y.sum().backward()
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=3e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=3e-3)
    assert torch.equal(x.grad, y.detach())
    kept_together = ((y[:, :-1] != 0) & (y[:, 1:] != 0)).float().mean().item()
    assert kept_together == pytest.approx((1 - p) ** 2, abs=3e-3)  # Neighbours share a random number, not a fate.
    assert dropout.eval()(x) is x


def test_either_ids_or_embeddings_are_asked_for(tiny_model):
    with refused(ValueError, "Encoder", "ids", "embeddings"):
        tiny_model(decoder_input_ids=TARGET)
    embeddings = tiny_model.get_input_embeddings()
    torch.testing.assert_close(
        tiny_model(inputs_embeds=embeddings(SOURCE), decoder_inputs_embeds=embeddings(TARGET)).logits,
        tiny_model(input_ids=SOURCE, decoder_input_ids=TARGET).logits,
    )


def test_decoder_on_its_own_goes_on_from_its_cache(tiny_model):
    """Without a source there is nothing to attend to but the target's own past."""
    decoder = tiny_model.get_decoder()
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    whole = decoder(input_ids=TARGET, attention_mask=mask).last_hidden_state
    begun = decoder(input_ids=TARGET[:, :3], attention_mask=mask[:, :3], use_cache=True)
    rest = decoder(input_ids=TARGET[:, 3:], attention_mask=mask, past_key_values=begun.past_key_values)
    torch.testing.assert_close(rest.last_hidden_state, whole[:, 3:], atol=1e-5, rtol=0)


def test_encoder_and_decoder_are_saved_and_loaded_on_their_own(tiny_model, tmp_path):
    whole = tiny_model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET, output_hidden_states=True)
    for part in ("encoder", "decoder"):
        getattr(tiny_model.model, part).save_pretrained(tmp_path / part)
    encoder, decoder = Encoder.from_pretrained(tmp_path / "encoder"), Decoder.from_pretrained(tmp_path / "decoder")
    states = encoder(input_ids=SOURCE, attention_mask=MASK).last_hidden_state
    torch.testing.assert_close(states, whole.encoder_last_hidden_state)
    found = decoder(input_ids=TARGET, encoder_hidden_states=states, encoder_attention_mask=MASK)
    torch.testing.assert_close(found.last_hidden_state, whole.decoder_hidden_states[-1])


@pytest.mark.parametrize("off", [0, 0.0])
def test_dropout_is_found_and_switched_off_by_its_type(tiny_config, off):
    tiny_config.dropout = 0.5
    model = VanillaTransformerForConditionalGeneration(tiny_config).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = off
    inputs = {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    assert torch.equal(model(**inputs).logits, model(**inputs).logits)
    assert torch.equal(model(**inputs).logits, model.eval()(**inputs).logits)


def test_dropout_of_all_leaves_nothing():
    assert not Dropout(1.0).train()(torch.ones(9)).any()


@pytest.mark.parametrize("name", ["position_ids", "decoder_position_ids"])
def test_positions_of_a_callers_own_are_refused(tiny_model, name):
    positions = {name: torch.tensor([[0, 1, 0, 1, 2]] * 2)}
    inputs = {"input_ids": SOURCE, "attention_mask": MASK}
    with refused(ValueError, name):
        tiny_model(**inputs, decoder_input_ids=TARGET, **positions)
    with refused(ValueError, name):
        tiny_model.generate(**inputs, **positions)
    assert tiny_model(**inputs, decoder_input_ids=TARGET, **{name: None}).logits is not None


@pytest.mark.parametrize("name", ["attention_mask", "decoder_attention_mask"])
@pytest.mark.parametrize("length", [3, 6])
def test_a_mask_of_another_length_than_its_tokens_is_refused(tiny_model, name, length):
    ids = torch.tensor([[5, 9, 7, 8, 2]])
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with refused(ValueError, f"{length} tokens", "5"):
        tiny_model(**inputs | {name: torch.ones(1, length, dtype=torch.long)})
    encoded = tiny_model.get_encoder()(ids)
    with refused(ValueError, f"{length} tokens", "5"):
        tiny_model(encoder_outputs=encoded, decoder_input_ids=ids, attention_mask=torch.ones(1, length))


def test_a_mask_covers_what_is_cached(tiny_model):
    ids = torch.tensor([[5, 9, 7, 8, 2]])
    before = tiny_model(input_ids=ids, decoder_input_ids=ids, use_cache=True)
    with refused(ValueError, "1 tokens", "6"):
        tiny_model(
            input_ids=ids,
            decoder_input_ids=ids[:, :1],
            decoder_attention_mask=torch.ones(1, 1, dtype=torch.long),
            past_key_values=before.past_key_values,
        )
