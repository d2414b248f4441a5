"""Terms of a glossary: what a line requires, and that every translation holds it as whole words."""

import re

import pytest
import torch
from refusals import refused

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    translate_lines,
)
from vanilla_transformer.extras.combining.terms import Glossary, TermError, TermTranslator
from vanilla_transformer.translation.lines import translator_of

TEXT = ["the big dog house of a dog", "ein großes Hundehaus eines Hundes", "Haus und Hausboot (GmbH)"]
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
ROWS = "dog\tHund\ndog house\tHundehütte\nhouse\tHaus\n\nUS\tUSA\nlimited company\tGmbH & Co. KG\n"
LINES = ["the dog house", "a dog and a house.", "", "a Dog", "us and the limited  company", "nothing here"]
REQUIRED = [["Hundehütte"], ["Hund", "Haus"], [], [], ["GmbH & Co. KG"], []]


def glossary(tmp_path, text=ROWS):
    path = tmp_path / "glossary.tsv"
    path.write_text(text, "utf-8")
    return path


def has(text, term):
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text) is not None


def model_and_tokenizer(algorithm="bpe"):
    tokenizer = VanillaTransformerTokenizer.train(TEXT, 290, algorithm)
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=290, **SIZES))
    torch.nn.init.normal_(model.model.shared.weight, std=0.6)
    return model.eval(), tokenizer


def test_a_line_requires_the_longest_terms_that_it_has_as_words(tmp_path):
    read = Glossary.read(glossary(tmp_path))
    assert [read.required(line) for line in LINES] == REQUIRED
    assert read.required("hotdog dogs dog-house dog_house") == ["Hund", "Haus"]
    assert read.required("dog, dog") == ["Hund"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dog\tHund\nhouse Haus\n", "line 2 'house Haus'"),
        ("dog\t \n", "line 1"),
        ("dog\tHund\tx\n", "line 1"),
        ("dog\tHund\ncat\tKatze\ndog\tKöter\n", "line 3 'dog' 'Hund'"),
        ("\n", "no terms"),
    ],
)
def test_rows_that_say_nothing_are_named(tmp_path, text, named):
    with refused(TermError, *named.split()):
        Glossary.read(glossary(tmp_path, text))
    (tmp_path / "latin").write_bytes("dog\tHundeh\xfctte".encode("latin-1"))
    with refused(TermError, "latin", "UTF-8"):
        Glossary.read(tmp_path / "latin")


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece", "unigram"])
def test_terms_appear_as_whole_words_and_leave_other_lines_alone(tmp_path, algorithm):
    model, tokenizer = model_and_tokenizer(algorithm)
    settings = {"num_beams": 3, "num_return_sequences": 3, "scores": True, "max_length_beyond_source": 12}
    plain = translator_of(model, tokenizer, **settings)
    found = TermTranslator.from_translator(plain, Glossary.read(glossary(tmp_path))).translate(LINES)
    for line, terms, translation, without in zip(LINES, REQUIRED, found, plain.translate(LINES), strict=True):
        assert len(translation.hypotheses) == 3
        for one in translation.hypotheses:
            assert all(has(one.text, term) for term in terms), (line, one.text)
        if not terms:
            # Rounded as in another batch.
            assert [one.text for one in translation.hypotheses] == [one.text for one in without.hypotheses]
            assert translation.score == pytest.approx(without.score, abs=1e-4)


def test_models_that_cannot_write_terms_are_refused(tmp_path):
    terms = Glossary.read(glossary(tmp_path))
    model, tokenizer = model_and_tokenizer()
    with refused(TermError, "--num-beams 2"):
        TermTranslator.from_translator(translator_of(model, tokenizer, num_beams=1), terms)
    for algorithm, named in (("presplit", "pre-split"), ("character", "space")):
        other = VanillaTransformerTokenizer.train(TEXT, 261, algorithm)
        with refused(TermError, named):
            TermTranslator.from_translator(translator_of(model, other), terms)
    unknown = VanillaTransformerTokenizer.train(TEXT, 290, ends=False)
    with refused(TermError, "space"):
        TermTranslator.from_translator(translator_of(model, unknown), terms)
    long = Glossary({("dog",): "Hundehütte " * 20 + "x"})
    with refused(ValueError, "max_length_beyond_source"):
        translator = translator_of(model, tokenizer, max_length_beyond_source=2)
        TermTranslator.from_translator(translator, long).translate(["a dog"])


@pytest.fixture
def run(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    model, tokenizer = model_and_tokenizer()
    for name in ("one", "two"):
        model.save_pretrained(name)
        tokenizer.save_pretrained(name)
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    glossary(tmp_path)
    return lambda *words: run_command("translate", *words, "--precision", "float32")


def test_translate_takes_a_glossary_for_ensembles_and_tasks_too(run, tmp_path):
    code, out, err = run("one", "two", "in", "--terms", "glossary.tsv")
    assert code == 0, err
    for terms, line in zip(REQUIRED, out.split("\n")[:-1], strict=True):
        assert all(has(line, term) for term in terms)
    tasks = ("one", "in", "--output", tmp_path / "parts", "--tasks", 1, "--task", 0, "--terms", "glossary.tsv")
    assert run(*tasks)[0] == 0
    glossary(tmp_path, "dog\tHaus\n")
    code, _, err = run(*tasks)
    assert code == 1 and "--terms" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--terms", "nothing.tsv"], "nothing.tsv: No such file"),
        (["--terms", "in"], "in, line 1: a row must be a source term"),
        (["--terms", "glossary.tsv", "--sample"], "--terms cannot be combined with"),
        (["--terms", "glossary.tsv", "--alignment", "words"], "--terms cannot be combined with"),
        (["--terms", "glossary.tsv", "--num-beams", 1], "give --num-beams 2 or more"),
    ],
)
def test_wrong_terms_are_refused_in_one_sentence(run, options, message):
    code, _, err = run("one", "in", *options)
    assert code in (1, 2) and message in err and err.count("\n") == 1, err


def test_without_terms_in_any_line_nothing_changes(tmp_path):
    model, tokenizer = model_and_tokenizer()
    terms = Glossary({("cat",): "Katze"})
    plain = list(translate_lines(model, tokenizer, LINES))
    assert TermTranslator.from_translator(translator_of(model, tokenizer), terms).translate(LINES) == plain
