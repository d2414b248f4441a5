"""Translation of lines: one for each, in order, whatever the chunks, the batches and the pauses."""

import itertools
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from refusals import refused
from searches import sharp
from small_models import SIZES, CopyingModel

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation import Pause, Translator, with_pauses
from vanilla_transformer.translation.live_models import _lengths

LINES = ["a b c", "", "the longest line of them all", "  ", "d", "e f", "e f"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(LINES, vocab_size=260)


@pytest.fixture
def copying():
    return CopyingModel()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=260, **SIZES)).eval()


def translated_by(model, tokenizer, lines, chunk_lines=3, **settings):
    translator = Translator(model, tokenizer, **settings)
    translator.chunk_lines = chunk_lines
    return translator(lines)


def texts(translations):
    return [translation.text for translation in translations]


@settings(max_examples=20)
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8"), max_size=12), max_size=12),
    chunk_lines=st.integers(1, 13),
    batch_tokens=st.integers(1, 60),
)
def test_each_line_gets_one_line_in_order(tokenizer, lines, chunk_lines, batch_tokens):
    model = CopyingModel()
    translated = texts(translated_by(model, tokenizer, lines, chunk_lines, batch_tokens=batch_tokens))
    assert translated == [" ".join(line.splitlines()) if line.strip() else "" for line in lines]
    assert all(len(text.splitlines()) <= 1 for text in translated)


def test_endless_input_is_read_no_further_than_a_chunk_ahead(tokenizer, copying):
    read = itertools.count()
    translations = translated_by(copying, tokenizer, (str(next(read)) for _ in itertools.repeat(None)), 5)
    assert texts(itertools.islice(translations, 12)) == [str(number) for number in range(12)]
    assert next(read) == 15


def test_a_pause_asks_for_what_came_before_it(tokenizer, copying):
    asked = []

    def conversation():
        for line in ("first", "second"):
            yield line
            yield Pause.PAUSE
            asked.append(line)

    translations = translated_by(copying, tokenizer, conversation(), 10)
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
    assert list(itertools.islice(arriving, 3)) == ["a", "b", Pause.PAUSE]
    answered.set()
    assert [line for line in arriving if line is not Pause.PAUSE] == ["c"]


def test_lines_with_pauses_that_nobody_reads_on_leave_no_thread():
    before = set(threading.enumerate())
    arriving = with_pauses(map(str, itertools.count()), patience=10)
    assert next(arriving) == "0"
    [reader] = set(threading.enumerate()) - before
    arriving.close()
    reader.join(timeout=60)
    assert not reader.is_alive()


def test_lines_before_an_unreadable_one_are_translated_before_the_error(tokenizer, copying):
    def lines():
        yield from ("a", "b")
        raise error("line 3 is not UTF-8")

    for error, source in itertools.product((ValueError, KeyError), (lines, lambda: with_pauses(lines(), patience=10))):
        translated = []
        with refused(error, "line 3"):
            for translation in Translator(copying, tokenizer)(source()):
                translated.append(translation.text)
        assert translated == ["a", "b"]


def test_a_line_that_is_too_long_is_cut_translated_and_flagged(tokenizer, copying):
    long, short = list(Translator(copying, tokenizer, max_source_length=9)(["xyz" * 20, "xyz"]))
    assert long.truncated and not short.truncated
    assert "xyzxyzxyzx".startswith(long.text) and len(long.text) >= 7
    longest = copying.batches[0][0]
    assert len(longest) == 9 and longest[-1] == tokenizer.eos_token_id


def test_translations_and_scores_are_those_of_generate(tokenizer, model):
    sentences = [line for line in LINES if line.strip()]
    translations = list(Translator(model, tokenizer, precision="float32", batch_tokens=30)(sentences))
    for sentence, translation in zip(sentences, translations, strict=True):
        inputs = tokenizer(sentence, return_tensors="pt")
        output = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
        expected = tokenizer.decode(output.sequences[0], skip_special_tokens=True)
        assert translation.text == " ".join(expected.splitlines())
        assert translation.score == pytest.approx(output.sequences_scores.item(), abs=1e-5)
        assert len(translation.hypotheses[0].ids) == output.sequences.shape[1] - 1
    greedy = Translator(model, tokenizer, precision="float32", num_beams=1)("a b")
    assert greedy.score == pytest.approx(log_probability(model, tokenizer, "a b", greedy.hypotheses[0].ids), abs=1e-4)
    # `generate` gives none without a beam.
    assert Translator(model, tokenizer, do_sample=True)("a b").score is None
    # Nor does an empty line have one, which nothing searches.
    assert Translator(model, tokenizer)(" ").score is None


def test_wrong_settings_and_what_is_no_text_are_refused(copying, tokenizer):
    limits = ("max_new_tokens", 0), ("max_length", "5"), ("min_new_tokens", 2.5)
    for setting, value in (("num_beams", 1.5), ("length_penalty", float("nan")), ("batch_tokens", 0), *limits):
        with refused(ValueError, setting):
            Translator(copying, tokenizer, **{setting: value})
    with refused(ValueError, "tokenizer"):
        Translator(copying)
    with refused(ValueError, "surrogates not allowed"):
        Translator(copying, tokenizer)("a \udc80")


@pytest.mark.parametrize("wrong", [None, float("nan"), b"b", 5], ids=repr)
@pytest.mark.parametrize("kind", [list, tuple, iter, lambda lines: dict(enumerate(lines)).values()])
def test_a_line_that_is_not_text_is_named_and_never_left_out(copying, tokenizer, kind, wrong):
    for lines in (kind(["a", wrong, "b"]), with_pauses(kind(["a", wrong, "b"]), patience=10)):
        with refused(ValueError, "Line 2", repr(wrong)):
            list(Translator(copying, tokenizer)(lines))


def test_what_is_not_lines_is_rejected_at_once(copying, tokenizer):
    table = SimpleNamespace(columns=["en"], __iter__=None)
    for wrong in (None, 5, {"en": ["a"]}, table, b"a"):
        with refused(ValueError, "lines"):
            Translator(copying, tokenizer)(wrong)


@pytest.mark.parametrize(
    "setting",
    [
        *({"precision": one} for one in ("fp16", "bf16", "INT8", None)),
        *({"d_model": 32}, {"_foo": 1}, {"num_beam": 4}, {"generation_config": 1}, {"renormalize_logits": "no"}),
        *({"suppress_tokens": 5}, {"suppress_tokens": [[5]]}, {"bad_words_ids": [5]}, {"eos_token_id": "2"}),
        *({"decoder_start_token_id": 999}, {"forced_eos_token_id": 9999}, {"forced_eos_token_id": []}),
        *({"eos_token_id": [2, -1]}, {"begin_suppress_tokens": [True]}, {"pad_token_id": 1.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("further", [{}, {"no_repeat_ngram_size": 2}], ids=["graph", "generate"])
def test_a_setting_of_generate_that_is_unknown_or_wrong_is_rejected_at_once(model, tokenizer, setting, further):
    with refused(ValueError, *setting):
        Translator(model, tokenizer, **setting, **further)


def test_numbers_and_arrays_of_other_libraries_are_settings(model, tokenizer):
    numbers = {"max_new_tokens": 5, "suppress_tokens": [7, 9], "num_beams": 2}
    arrays = {name: np.array(one, np.int32) for name, one in numbers.items()}
    assert Translator(model, tokenizer, **arrays)("a b") == Translator(model, tokenizer, **numbers)("a b")


def test_a_translator_cannot_be_pickled(copying, tokenizer):
    with refused(TypeError, "Translator", "process"):
        pickle.dumps(Translator(copying, tokenizer))


def test_padding_that_the_model_writes_is_part_of_the_translation():
    ids = torch.tensor([[0, 5, 0, 0, 7, 2, 0], [5, 0, 7, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0], [9, 9, 9, 9, 9, 9, 9]])
    assert _lengths(ids, torch.tensor([2]), 0).tolist() == [6, 3, 1, 7]


@pytest.mark.parametrize("settings", [{"encoder_repetition_penalty": 1.5}, {"encoder_no_repeat_ngram_size": 1}])
def test_penalties_that_read_the_source_do_not_depend_on_its_neighbours(tokenizer, settings):
    lines, padding_is_likely = ["a b c d e", "a", "b c"], [[[0], 6.0]]
    translator = Translator(
        sharp(0, vocab_size=260), tokenizer, max_new_tokens=8, sequence_bias=padding_is_likely, **settings
    )
    together = [one.hypotheses[0].ids for one in translator(lines)]
    assert together == [translator(line).hypotheses[0].ids for line in lines]
    assert any(0 in ids for ids in together)


def log_probability(model, tokenizer, source: str, ids: tuple[int, ...]) -> float:
    """The mean log-probability of a translation's tokens, by the library's exponent of 1."""
    inputs = tokenizer(source, return_tensors="pt")
    read = torch.tensor([[model.config.decoder_start_token_id, *ids[:-1]]])
    with torch.no_grad():
        log_p = model(**inputs, decoder_input_ids=read).logits.log_softmax(-1)[0]
    total = log_p[range(len(ids)), list(ids)].sum().item()
    return total / ((5 + len(ids)) / 6) ** model.generation_config.length_penalty


def test_line_ends_are_no_part_of_a_line(tokenizer, copying):
    lines = ["a b\n", "c\r\n", "d"]
    assert texts(Translator(copying, tokenizer)(lines)) == ["a b", "c", "d"]
    assert [Translator(copying, tokenizer)(line).text for line in lines] == ["a b", "c", "d"]
