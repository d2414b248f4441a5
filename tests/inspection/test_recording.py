"""Attention weights as data."""

import pytest
import torch
from refusals import refused
from small_models import random_model, unigram_tokenizer

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
)
from vanilla_transformer.errors import ModelError
from vanilla_transformer.inspection import Pieces, attention
from vanilla_transformer.tokenizer import train_tokenizer


def test_weights_are_those_of_a_pass_with_the_written_out_attention(model, tokenizer):
    model.train().model.encoder.eval()  # As with a frozen encoder.
    seen = attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")
    assert model.training and not model.model.encoder.training
    model.eval()
    inputs = tokenizer("A dog runs.", return_tensors="pt")
    labels = tokenizer(text_target="Ein Hund läuft.", return_tensors="pt")["input_ids"]
    model.set_attn_implementation("eager")
    expected = model(**inputs, labels=labels, output_attentions=True)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(seen.weights["encoder"], torch.cat(expected.encoder_attentions))
    torch.testing.assert_close(seen.weights["decoder"], torch.cat(expected.decoder_attentions))
    torch.testing.assert_close(seen.weights["cross"], torch.cat(expected.cross_attentions))


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
    for weights in words.weights.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    place = [number for number, word in enumerate(seen.source.word_of) if word == 2]
    assert len(place) > 1
    expected = seen.weights["encoder"][..., place, :][..., place].sum(-1).mean(-1)
    torch.testing.assert_close(words.weights["encoder"][..., 2, 2], expected)


@pytest.mark.parametrize(
    ("algorithm", "vocab_size"), [("bpe", 270), ("unigram", 270), ("wordpiece", 270), ("character", 261)]
)
def test_pieces_spell_the_text_whatever_the_tokenizer(algorithm, vocab_size):
    text = "Zwei Männer — naïve 12% 漢字!"
    texts = ["Zwei Männer warten."] * 9
    if algorithm == "unigram":
        tokenizer = unigram_tokenizer(texts, vocab_size)
    else:
        tokenizer = train_tokenizer(texts, vocab_size, algorithm)
    pieces = Pieces.from_ids(tokenizer, tokenizer(text)["input_ids"])
    assert pieces.words == (*text.split(), "</s>")
    alone = Pieces.from_ids(tokenizer, tokenizer("Männer")["input_ids"])
    assert alone.words == alone.texts and alone.as_words() == alone
    assert len(pieces) == len(tokenizer(text)["input_ids"]) and list(pieces.word_of) == sorted(pieces.word_of)


@pytest.mark.parametrize(
    ("head", "kind", "missing"), [("classifier", "encoder", "cross"), ("language-model", "decoder", "encoder")]
)
def test_models_of_one_stack_show_its_self_attention(tokenizer, head, kind, missing):
    model = random_model(head, vocab_size=len(tokenizer))
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


def test_a_recurrent_model_shows_its_cross_attention(tokenizer):
    config = RecurrentEncoderDecoderConfig(vocab_size=len(tokenizer), d_model=16, attention="bahdanau")
    model = RecurrentEncoderDecoderForConditionalGeneration(config).eval()
    seen = attention(model, tokenizer, "A dog runs.", "Ein Hund läuft.")
    assert seen.weights["cross"].shape == (1, 1, len(seen.written), len(seen.source))
    torch.testing.assert_close(seen.weights["cross"].sum(-1), torch.ones(1, 1, len(seen.written)))
