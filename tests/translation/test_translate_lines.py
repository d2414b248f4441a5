"""Translation of lines: one for each, in order, whatever the chunks, the batches and the pauses."""

import itertools
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from transformers.utils import ModelOutput

from vanilla_transformer import VanillaTransformerEncoderConfig, VanillaTransformerEncoderForSequenceClassification
from vanilla_transformer.errors import ModelError
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.translation import (
    LineTranslator,
    load_config,
    load_model,
    load_tokenizer,
    translate_lines,
    with_pauses,
)
from vanilla_transformer.translation import lines as module

SIZES = {"vocab_size": 260, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
LINES = ["a b c", "", "the longest line of them all", "  ", "d", "e f", "e f"]


class CopyingModel(VanillaTransformerForConditionalGeneration):
    """Translates each source into itself, and remembers each batch."""

    def __init__(self, config):
        super().__init__(config)
        self.batches = []

    def generate(self, input_ids, attention_mask, return_dict_in_generate=False, **kwargs):
        self.batches.append(input_ids)
        start = input_ids.new_full((input_ids.shape[0], 1), self.config.decoder_start_token_id)
        return ModelOutput(sequences=torch.cat((start, input_ids), dim=1))


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(LINES, vocab_size=SIZES["vocab_size"])


@pytest.fixture
def copying():
    return CopyingModel(VanillaTransformerConfig(**SIZES))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SIZES)).eval()


def texts(translations):
    return [translation.text for translation in translations]


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=12),
    chunk_lines=st.integers(1, 13),
    batch_tokens=st.integers(1, 60),
)
def test_each_line_gets_one_line_in_order(tokenizer, lines, chunk_lines, batch_tokens):
    model = CopyingModel(VanillaTransformerConfig(**SIZES))
    translated = texts(translate_lines(model, tokenizer, lines, chunk_lines=chunk_lines, batch_tokens=batch_tokens))
    assert translated == [" ".join(line.splitlines()) if line.strip() else "" for line in lines]
    assert all(len(text.splitlines()) <= 1 for text in translated)


def test_endless_input_is_read_no_further_than_a_chunk_ahead(tokenizer, copying):
    read = itertools.count()
    translations = translate_lines(
        copying, tokenizer, (str(next(read)) for _ in itertools.repeat(None)), chunk_lines=5
    )
    assert texts(itertools.islice(translations, 12)) == [str(number) for number in range(12)]
    assert next(read) == 15


def test_a_pause_asks_for_what_came_before_it(tokenizer, copying):
    asked = []

    def conversation():
        for line in ("first", "second"):
            yield line
            yield None
            asked.append(line)

    translations = translate_lines(copying, tokenizer, conversation(), chunk_lines=100)
    assert next(translations).text == "first"
    assert asked == []
    assert texts(translations) == ["second"]


def test_pauses_are_marked_where_the_next_line_is_slow_and_only_there():
    answered = threading.Event()

    def lines():
        yield from ("a", "b")
        answered.wait(timeout=300)
        yield "c"

    arriving = with_pauses(lines(), patience=0.05)
    assert list(itertools.islice(arriving, 3)) == ["a", "b", None]
    answered.set()
    assert [line for line in arriving if line is not None] == ["c"]


def test_lines_before_an_unreadable_one_are_translated_before_the_error(tokenizer, copying):
    def lines():
        yield from ("a", "b")
        raise ValueError("line 3 is not UTF-8")

    for source in (lines(), with_pauses(lines(), patience=10)):
        translated = []
        with refused(ValueError, "line 3"):
            for translation in translate_lines(copying, tokenizer, source):
                translated.append(translation.text)
        assert translated == ["a", "b"]


def test_a_line_that_is_too_long_is_cut_translated_and_flagged(tokenizer, copying):
    long, short = list(translate_lines(copying, tokenizer, ["xyz" * 20, "xyz"], max_source_length=9))
    assert long.truncated and not short.truncated
    assert "xyzxyzxyzx".startswith(long.text) and len(long.text) >= 7
    longest = copying.batches[0][0]
    assert len(longest) == 9 and longest[-1] == tokenizer.eos_token_id


def test_translations_and_scores_are_those_of_generate(tokenizer, model):
    sentences = [line for line in LINES if line.strip()]
    translations = list(translate_lines(model, tokenizer, sentences, batch_tokens=30, scores=True))
    for sentence, translation in zip(sentences, translations, strict=True):
        inputs = tokenizer(sentence, return_tensors="pt")
        output = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
        expected = tokenizer.decode(output.sequences[0], skip_special_tokens=True)
        assert translation.text == " ".join(expected.splitlines())
        assert translation.score == pytest.approx(output.sequences_scores.item(), abs=1e-5)
        assert translation.hypotheses[0].tokens == output.sequences.shape[1] - 1


def test_arguments_override_the_settings_of_the_model_and_none_leaves_them(tokenizer, model):
    [translation] = translate_lines(model, tokenizer, ["a b c"], num_beams=1, max_new_tokens=3)
    assert translation.score is None and translation.hypotheses[0].tokens <= 3
    settings = dict.fromkeys(("num_beams", "length_penalty", "max_length_beyond_source"))
    assert list(translate_lines(model, tokenizer, LINES, **settings)) == list(translate_lines(model, tokenizer, LINES))


def test_several_hypotheses_come_best_first(tokenizer, model):
    arguments = {"num_return_sequences": 3, "scores": True, "max_new_tokens": 5}
    for translation in translate_lines(model, tokenizer, ["a b c", "d"], **arguments):
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert translation.score == scores[0]


def test_model_in_training_mode_translates_without_dropout(tokenizer, model):
    config = VanillaTransformerConfig(**SIZES, dropout=0.9)
    trained = VanillaTransformerForConditionalGeneration(config)
    trained.load_state_dict(model.state_dict())
    trained.train()
    translated = texts(translate_lines(trained, tokenizer, ["a b c"], max_new_tokens=5))
    assert translated == texts(translate_lines(model, tokenizer, ["a b c"], max_new_tokens=5))
    assert trained.training and not model.training


def test_progress_goes_with_the_tokens_and_counts_every_line_once(tokenizer, copying):
    counts = []
    lines = ["a" * 30, "a", "a", "", "a" * 30]
    list(translate_lines(copying, tokenizer, lines, batch_tokens=31, progress=counts.append))
    assert counts == [2, 2, 1]
    counts.clear()
    counts = []
    list(translate_lines(copying, tokenizer, LINES * 3, chunk_lines=4, batch_tokens=10, progress=counts.append))
    assert sum(counts) == len(LINES) * 3


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_saved_model_is_loaded_in_the_type_asked_for(tokenizer, model, tmp_path, dtype):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, its_tokenizer = load_model(tmp_path, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype or torch.float32}
    assert not loaded.training
    assert its_tokenizer.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("load", [load_model, load_config, load_tokenizer])
def test_a_path_without_a_model_is_named(load, tmp_path):
    with refused(ModelError, "model directory", ".json"):
        load(tmp_path)
    for missing in (tmp_path / "nowhere", "nowhere"):
        with refused(ModelError, "nowhere"):
            load(missing)


def test_two_threads_find_what_one_finds(model, tokenizer):
    lines = [" ".join("abcdefg"[: 1 + number % 7]) for number in range(40)]
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        told: list[int] = []
        translations = translate_lines(model, tokenizer, lines, batch_tokens=16, scores=True, progress=told.append)
        found.append([translation.text for translation in translations])
        assert sum(told) == len(lines)
    assert found[0] == found[1]


def test_as_many_hypotheses_of_an_empty_line_as_of_others(model, tokenizer):
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 2}
    translations = list(translate_lines(model, tokenizer, ["a", "", " ", "b"], **settings))
    assert [len(translation.hypotheses) for translation in translations] == [2, 2, 2, 2]
    assert [hypothesis.text for hypothesis in translations[1].hypotheses] == ["", ""]


def test_chunks_end_where_they_have_enough_characters():
    long, longer = "a" * 600_000, "b" * 2_000_000
    gathered = list(module.chunks([long, long, "c", longer, "e", None, "f", "g", "h"], 3))
    assert gathered == [[long, long], ["c", longer], ["e"], ["f", "g", "h"]]


def test_long_lines_of_a_fast_stream_do_not_gather():
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield "a" * (module._LONG_LINE + 1)

    arrived = with_pauses(lines(), patience=10)
    next(arrived)
    time.sleep(0.1)
    assert len(read) <= 3
    assert sum(line is not None for line in arrived) == 99


def test_batches_keep_to_the_budget_start_with_the_longest_and_have_a_multiple_of_eight_rows(model, tokenizer):
    translator = LineTranslator.from_model(model, tokenizer, batch_tokens=100)
    ids = {number: [1] * (3 if number < 70 else 25) for number in range(90)}
    batches = list(translator._batches(ids))
    assert [len(batch) for batch in batches] == [4] * 5 + [32, 32, 6]
    assert sorted(number for batch in batches for number in batch) == list(range(90))


def test_a_long_line_is_cut_before_it_is_split_into_tokens(model, tokenizer, monkeypatch):
    seen, split = [], VanillaTransformerTokenizer.__call__

    def watched(self, texts, **options):
        seen.extend(map(len, texts))
        return split(self, texts, **options)

    long = "a b " * 50_000
    settings = {"max_source_length": 20, "max_new_tokens": 3, "num_beams": 2}
    monkeypatch.setattr(VanillaTransformerTokenizer, "__call__", watched)
    [translation] = translate_lines(model, tokenizer, [long], **settings)
    assert max(seen) < 1000
    assert [translation] == list(translate_lines(model, tokenizer, [long[:300]], **settings))
    assert translation.truncated


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[("num_beams", value) for value in (0, -1, 1.5, True, 100_000)],
        *[(name, 0) for name in ("num_return_sequences", "batch_tokens", "max_source_length", "chunk_lines")],
        *[("length_penalty", value) for value in (float("nan"), float("inf"), 11.0, "1")],
        *[("max_length_beyond_source", value) for value in (-1, 2**63, 0.5)],
    ],
)
def test_settings_that_the_command_refuses_are_refused_by_the_function(copying, tokenizer, setting, value):
    with refused(ValueError, setting):
        translate_lines(copying, tokenizer, ["a"], **{setting: value})


def test_non_text_and_a_bare_string_are_refused(copying, tokenizer):
    with refused(ValueError, "lines", "['A dog.']"):
        translate_lines(copying, tokenizer, "A dog.")
    with refused(ValueError, "Line 2", "None"):
        translate_lines(copying, tokenizer, ["a", None, "b"])
    with refused(ValueError, "7", "lines"):
        list(translate_lines(copying, tokenizer, iter(["a", 7])))
    with refused(ValueError, "lines", "several texts"):
        LineTranslator.from_model(copying, tokenizer).translate("a")


def test_a_model_that_does_not_translate_is_named(tokenizer):
    sizes = {name: value for name, value in SIZES.items() if name != "decoder_layers"}
    classifier = VanillaTransformerEncoderForSequenceClassification(VanillaTransformerEncoderConfig(**sizes))
    with refused(ValueError, "VanillaTransformerEncoderForSequenceClassification"):
        translate_lines(classifier, tokenizer, ["a"])
