"""Alignments: which attention they are read from, how pieces become words, and how heads are chosen."""

import json
from itertools import accumulate

import pytest
import torch
from refusals import refused
from small_models import random_model, unigram_tokenizer

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.onnx_file import renew
from vanilla_transformer.inspection import (
    AlignmentHeads,
    alignments,
    attention,
    choose_alignment_heads,
    save_alignment_heads,
)
from vanilla_transformer.inspection.alignment import Aligner, every_head
from vanilla_transformer.inspection.alignment_heads import _agreement, prediction_difference
from vanilla_transformer.tokenizer import train_tokenizer

SOURCES = ["A dog waits in the parks.", "Two men wait.", "A dog runs in the park."]
TARGETS = ["Ein Hund wartet.", "Zwei Männer warten im Park.", "Ein Hund läuft."]


@pytest.mark.parametrize(("step", "later"), [("input", 1), ("output", 0)])
def test_words_are_linked_where_their_pieces_attend_most_when_read_or_written(model, tokenizer, step, later):
    found = alignments(model, tokenizer, SOURCES, TARGETS, heads=AlignmentHeads(((1, 2), (3, 4)), step))
    for source, target, one in zip(SOURCES, TARGETS, found, strict=True):
        assert one.source == tuple(source.split()) and one.target == tuple(target.split())
        seen = attention(model, tokenizer, source, target)
        tokens = len(seen.written) - 1
        weights = torch.stack([seen.weights["cross"][0, 1], seen.weights["cross"][2, 3]])
        # Heads are normalised one by one, so that none that looks at </s> counts less.
        weights = weights[:, later : later + tokens, :-1]
        best = (weights / weights.sum(-1, keepdim=True)).mean(0).argmax(-1).tolist()
        # A word's pieces begin with a space.
        columns, rows = (
            list(accumulate(piece[0] == "Ġ" for piece in tokenizer.tokenize(text))) for text in (source, target)
        )
        assert set(one.links) == {(columns[best[row]] - 1, rows[row] - 1) for row in range(tokens)}
        assert one.pharaoh() == " ".join(f"{i}-{j}" for i, j in one.links)


TOKENIZERS = {
    "lower case": lambda texts: train_tokenizer(texts, 280, lowercase=True),
    "pieces of space": lambda texts: unigram_tokenizer(texts, 280),
    "text that is split": lambda texts: train_tokenizer(texts, algorithm="presplit"),
}


@pytest.mark.parametrize("train", TOKENIZERS.values(), ids=TOKENIZERS)
def test_every_word_of_a_target_is_linked_whatever_the_tokenizer(train):
    texts = ["Zwei Män@@ ner war@@ ten im Park ."] * 9
    tokenizer = train(texts)
    model = random_model("translator", vocab_size=len(tokenizer))
    (found,) = alignments(model, tokenizer, texts[:1], texts[:1], heads=AlignmentHeads(((1, 1),)))
    assert found.target == tuple(texts[0].split())
    assert {row for _, row in found.links} == set(range(len(found.target)))
    assert {column for column, _ in found.links} <= set(range(len(found.source)))


def test_prediction_difference_is_the_loss_from_masking_a_source_token(model, tokenizer):
    aligner = Aligner(model, tokenizer)
    (pair,) = aligner.pairs(SOURCES[1:2], TARGETS[1:2])
    found = prediction_difference(aligner, *pair)
    inputs = tokenizer(SOURCES[1], return_tensors="pt")
    labels = tokenizer(text_target=TARGETS[1], return_tensors="pt")["input_ids"]

    def likely(mask):
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], attention_mask=mask, labels=labels).logits[0]
        return logits.log_softmax(-1).gather(1, labels[0, :, None])[:-1, 0]

    mask = inputs["attention_mask"].clone()
    mask[0, 3] = 0
    expected = (likely(inputs["attention_mask"]) - likely(mask)).clamp(min=0)
    torch.testing.assert_close(found[:, 3], expected, rtol=1e-4, atol=1e-5)


def test_chosen_heads_beat_each_alone_and_are_saved_with_the_model(model_directory, tokenizer, tmp_path):
    model = VanillaTransformerForConditionalGeneration.from_pretrained(model_directory)
    with refused(ModelError, "alignment heads"):
        alignments(model, tokenizer, SOURCES, TARGETS)
    choice = choose_alignment_heads(model, tokenizer, SOURCES, TARGETS)
    assert choice == choose_alignment_heads(model, tokenizer, SOURCES, TARGETS) and choice.pairs == 3
    aligner = Aligner(model, tokenizer)
    pairs = aligner.pairs(SOURCES, TARGETS)
    differences = [prediction_difference(aligner, *pair) for pair in pairs]
    for step in ("input", "output"):
        for head in every_head(model):
            alone = aligner.attention(pairs, AlignmentHeads((head,), step))
            assert _agreement([weights[0] for weights in alone], differences) <= choice.agreement + 1e-6
    model.save_pretrained(tmp_path)
    renew(tmp_path)
    graph = (tmp_path / "translate.onnx").read_bytes()
    before = json.loads((tmp_path / "generation_config.json").read_text())
    save_alignment_heads(tmp_path, model, choice.heads)
    after = json.loads((tmp_path / "generation_config.json").read_text())
    assert {name: after[name] for name in before} == before
    assert (tmp_path / "translate.onnx").read_bytes() != graph  # It belongs to these settings.
    for again in (model, VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)):
        assert AlignmentHeads.from_model(again) == choice.heads
        again.save_pretrained(tmp_path / "copy")
        copy = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "copy")
        assert AlignmentHeads.from_model(copy) == choice.heads


def test_a_recurrent_model_has_one_head_and_needs_no_choice(tokenizer):
    config = RecurrentEncoderDecoderConfig(vocab_size=len(tokenizer), d_model=16, attention="bahdanau")
    model = RecurrentEncoderDecoderForConditionalGeneration(config).eval()
    assert AlignmentHeads.from_model(model) == AlignmentHeads(((1, 1),), "output")
    (found,) = alignments(model, tokenizer, ["A dog runs."], ["Ein Hund läuft."])
    assert {row for _, row in found.links} == {0, 1, 2}


def test_wrong_alignment_heads_are_refused(model, tokenizer):
    for wrong in ((1, 5), (0, 1)):
        with refused(ModelError, "{}:{}".format(*wrong), "3:4"):
            alignments(model, tokenizer, SOURCES, TARGETS, heads=AlignmentHeads(((1, 2), wrong)))
    with refused(ModelError, "two tokens"):
        choose_alignment_heads(model, tokenizer, ["A", " "], [" ", "A"])
    indifferent = random_model("translator", vocab_size=len(tokenizer))
    torch.nn.init.zeros_(indifferent.model.shared.weight)
    with refused(ModelError, "source token"):
        choose_alignment_heads(indifferent, tokenizer, SOURCES, TARGETS)
