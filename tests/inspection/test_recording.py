"""Attention weights as data."""

import pytest
import torch
from refusals import refused
from small_models import unigram_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.engine.known import unknown
from vanilla_transformer.errors import ModelError
from vanilla_transformer.inspection import KINDS, Pieces, attention
from vanilla_transformer.model.modeling_vanilla_transformer import scaled_dot_product_attention
from vanilla_transformer.translation import LineTranslator


def test_weights_are_those_of_a_pass_with_the_written_out_attention(model, tokenizer):
    seen = attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")
    inputs = tokenizer("A dog runs.", return_tensors="pt")
    labels = tokenizer(text_target="Ein Hund läuft.", return_tensors="pt")["input_ids"]
    model.set_attn_implementation("eager")
    expected = model(**inputs, labels=labels, output_attentions=True)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(seen.weights["encoder"], torch.cat(expected.encoder_attentions))
    torch.testing.assert_close(seen.weights["decoder"], torch.cat(expected.decoder_attentions))
    torch.testing.assert_close(seen.weights["cross"], torch.cat(expected.cross_attentions))


def test_the_first_layers_weights_follow_eq_1_from_the_models_projections(model, tokenizer):
    seen = attention(model, tokenizer, "A dog runs.")
    x = model.get_encoder().embed(tokenizer("A dog runs.", return_tensors="pt")["input_ids"], None, None)
    block = model.model.encoder.layers[0].self_attention
    heads = [part(x).unflatten(-1, (4, -1)).transpose(1, 2) for part in (block.q_proj, block.k_proj, block.v_proj)]
    with torch.no_grad():
        _, expected = scaled_dot_product_attention(block, *heads, None)
    torch.testing.assert_close(seen.weights["encoder"][0], expected[0].detach())


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_is_as_it_was_and_dropout_never_acts(model, tokenizer, implementation):
    model.set_attn_implementation(implementation)
    model.train()
    first, second = (attention(model, tokenizer, "A dog runs.") for _ in range(2))
    assert model.training and model.config._attn_implementation == implementation
    model.eval().set_attn_implementation("sdpa")
    assert all(torch.equal(first.weights[kind], second.weights[kind]) for kind in KINDS)


def test_attention_without_a_target_is_of_the_models_translation(model, tokenizer):
    seen = attention(model, tokenizer, "Two men wait.")
    ids = model.generate(**tokenizer("Two men wait.", return_tensors="pt"))[0].tolist()
    assert seen.read == Pieces.from_ids(tokenizer, ids[:-1])
    assert seen.written == Pieces.from_ids(tokenizer, ids[1:])
    assert seen.read.texts[0] == "<s>"
    assert seen.weights["decoder"].shape[-1] == len(seen.read) == len(seen.written)


def test_rows_of_words_sum_to_one_and_average_their_pieces(model, tokenizer):
    seen = attention(model, tokenizer, "A dog waits in the parks.", "Ein Hund wartet.")
    words = seen.words()
    assert words.source.texts == ("A", "dog", "waits", "in", "the", "parks.", "</s>")
    assert words.written.texts == ("Ein", "Hund", "wartet.", "</s>")
    for kind in KINDS:
        torch.testing.assert_close(words.weights[kind].sum(-1), torch.ones(words.weights[kind].shape[:-1]))
    place = [number for number, word in enumerate(seen.source.word_of) if word == 2]
    assert len(place) > 1
    expected = seen.weights["encoder"][..., place, :][..., place].sum(-1).mean(-1)
    torch.testing.assert_close(words.weights["encoder"][..., 2, 2], expected)


def test_the_decoder_never_attends_to_what_comes_after(model, tokenizer):
    seen = attention(model, tokenizer, "A dog runs.", "Ein Hund läuft im Park.")
    assert seen.weights["decoder"].triu(1).abs().max() == 0
    assert seen.words().weights["decoder"].triu(1).abs().max() == 0


@pytest.mark.parametrize(
    ("algorithm", "vocab_size"), [("bpe", 270), ("unigram", 270), ("wordpiece", 270), ("character", 261)]
)
def test_pieces_spell_the_text_whatever_the_tokenizer(algorithm, vocab_size):
    text = "Zwei Männer — naïve 12% 漢字!"
    texts = ["Zwei Männer warten."] * 9
    if algorithm == "unigram":
        tokenizer = unigram_tokenizer(texts, vocab_size)
    else:
        tokenizer = VanillaTransformerTokenizer.train(texts, vocab_size, algorithm)
    pieces = Pieces.from_ids(tokenizer, tokenizer(text)["input_ids"])
    assert pieces.words == (*text.split(), "</s>")
    assert len(pieces) == len(tokenizer(text)["input_ids"]) and list(pieces.word_of) == sorted(pieces.word_of)


def test_pieces_of_a_word_that_was_split_before_are_one_word():
    tokenizer = VanillaTransformerTokenizer.train(["wal@@ king do@@ gs"] * 3, algorithm="presplit")
    pieces = Pieces.from_ids(tokenizer, tokenizer("wal@@ king do@@ gs")["input_ids"])
    assert pieces.words == ("walking", "dogs", "</s>") and pieces.word_of == (0, 0, 1, 1, 2)


def test_layers_heads_and_texts_that_do_not_exist_are_named(model, tokenizer):
    seen = attention(model, tokenizer, "A dog runs.")
    with refused(ModelError, "layer 4", "3"):
        seen.select("cross", 4, 1)
    with refused(ModelError, "head 0", "from 1"):
        seen.select("cross", -1, 0)
    for empty in ("", "  \n"):
        with refused(ModelError, "source", "empty"):
            attention(model, tokenizer, empty)
    with refused(ModelError, "target", "empty"):
        attention(model, tokenizer, "A dog runs.", " ")


@pytest.mark.parametrize(
    ("config", "model_class", "kind", "missing"),
    [
        (VanillaTransformerEncoderConfig, VanillaTransformerEncoderForSequenceClassification, "encoder", "cross"),
        (VanillaTransformerDecoderConfig, VanillaTransformerDecoderForCausalLM, "decoder", "encoder"),
    ],
)
def test_models_of_one_stack_show_its_self_attention(tokenizer, config, model_class, kind, missing):
    torch.manual_seed(0)
    model = model_class(config.from_preset("tiny", vocab_size=len(tokenizer))).eval()
    seen = attention(model, tokenizer, "A dog runs.")
    assert list(seen.weights) == [kind]
    inputs = tokenizer("A dog runs.", return_tensors="pt")
    model.set_attn_implementation("eager")
    torch.testing.assert_close(seen.weights[kind], torch.cat(model(**inputs, output_attentions=True).attentions))
    assert seen.queries(kind) == seen.keys(kind) == Pieces.from_ids(tokenizer, inputs["input_ids"][0].tolist())
    assert seen.words().queries(kind).texts == ("A", "dog", "runs.", "</s>")
    with refused(ModelError, missing, kind):
        seen.select(missing, 1, 1)
    with refused(ModelError, "target"):
        attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")


@pytest.mark.parametrize("kind", ["bahdanau", "luong-general"])
def test_a_recurrent_model_shows_its_cross_attention(tokenizer, kind):
    torch.manual_seed(0)
    config = RecurrentEncoderDecoderConfig(vocab_size=len(tokenizer), d_model=16, attention=kind)
    model = RecurrentEncoderDecoderForConditionalGeneration(config).eval()
    seen = attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")
    assert seen.weights["cross"].shape == (1, 1, len(seen.written), len(seen.source))
    torch.testing.assert_close(seen.weights["cross"].sum(-1), torch.ones(1, 1, len(seen.written)))
    with refused(ModelError, "encoder self-attention", "cross-attention"):
        seen.select("encoder", 1, 1)


def test_a_recurrent_model_without_attention_is_named(tokenizer):
    config = RecurrentEncoderDecoderConfig(vocab_size=len(tokenizer), d_model=16, attention="none")
    with refused(ModelError, "attention"):
        attention(RecurrentEncoderDecoderForConditionalGeneration(config), tokenizer, "A dog", "Ein Hund")


def test_a_target_that_the_tokenizer_cannot_make_is_named(model, tokenizer):
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "dog": 4}, "<unk>")),
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="</s>",
    )
    words.backend_tokenizer.pre_tokenizer = Whitespace()
    assert attention(model, words, "cat", "dog").written.texts == ("dog",)
    with refused(ModelError, "dog <unk>"):
        attention(model, words, "dog", "dog Hund")


def test_ten_thousand_words_are_refused_before_they_are_read(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model, "generate", lambda **_: pytest.fail("generated"))
    for target in (None, "Ein Hund."):
        with refused(ModelError, "too long"):
            attention(model, tokenizer, "dog " * 10_000, target)


def test_recorded_model_still_decodes_fast_and_with_scores(tokenizer):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes))
    translator = LineTranslator.from_model(model.eval(), tokenizer, scores=True)
    (before,) = translator.translate(["A dog runs."])
    attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")
    assert unknown(model) is None
    for _ in range(2):  # The second call is planned.
        assert translator.translate(["A dog runs."]) == [before]
    assert before.score is not None
    model.model.decoder.layers[0].register_forward_hook(lambda *_: None)
    assert "a hook" in unknown(model)
