"""`--rescore MODEL`: other models choose among the hypotheses of a beam, whatever their vocabulary and direction."""

import json

import pytest
import torch
from refusals import refused
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.extras.combining.model_rescoring import ModelRescorer, RescoringError
from vanilla_transformer.translation import LineTranslator, load_model

SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
FLOAT32 = ("--precision", "float32")
LINES = ["a b", "", "b", "a a b c"]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Models of different seeds, vocabularies, directions and families."""
    folder = tmp_path_factory.mktemp("models")
    words = ["a b c ab abc bca"]
    own, other = (VanillaTransformerTokenizer.train(words, size) for size in (262, 265))
    other_splits = VanillaTransformerTokenizer.train(["a@@ b c"], algorithm="presplit")
    for seed, (name, tokenizer, settings) in enumerate(
        (
            ("first", own, {}),
            ("same", own, {}),
            ("other", other, {"positional_encoding": "learned", "max_position_embeddings": 8}),
            ("presplit", other_splits, {}),
        )
    ):
        torch.manual_seed(seed)
        model = VanillaTransformerForConditionalGeneration(
            # Tied, it would write one token again and again.
            VanillaTransformerConfig(vocab_size=len(tokenizer), tie_word_embeddings=False, **SIZES, **settings)
        )
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    torch.manual_seed(9)
    config = RecurrentEncoderDecoderConfig(vocab_size=len(own), d_model=16, num_layers=1, initializer_range=0.8)
    RecurrentEncoderDecoderForConditionalGeneration(config).save_pretrained(folder / "recurrent")
    own.save_pretrained(folder / "recurrent")
    (folder / "in").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "out").write_text("a\n\nb\nab\n")
    return folder


@pytest.fixture
def run(directories, monkeypatch, run_command):
    monkeypatch.chdir(directories)
    return run_command


def candidates(directories, **search):
    model, tokenizer = load_model(directories / "first", device="cpu")
    search = {"num_beams": 5, "num_return_sequences": 5, "scores": True, **search}
    return LineTranslator.from_model(model, tokenizer, **search)


def rescorer(directories, translator, *names):
    return ModelRescorer.from_models(
        translator, [(name, *load_model(directories / name, device="cpu")) for name in names]
    )


@pytest.mark.parametrize("search", [{}, {"length_penalty": 1.5}, {"length_penalty": 0.0}], ids=str)
@pytest.mark.parametrize("kind", ["google", "huggingface"])
def test_the_searching_model_says_of_its_translations_what_its_search_said(directories, search, kind):
    translator = candidates(directories, **search)
    translator.model.generation_config.length_penalty_type = kind
    found = translator.translate(LINES)
    scores = rescorer(directories, translator, "first").scores(LINES, found)
    assert len(scores) == len(LINES)
    for translation, doubled in zip(found, scores, strict=True):
        assert doubled == pytest.approx([2 * one.score for one in translation.hypotheses], abs=2e-4)


@pytest.mark.parametrize("name", ["same", "other", "from-right", "recurrent"])
def test_rescorer_scores_the_text_in_its_own_tokens(directories, name):
    translator = candidates(directories)
    found = translator.translate(LINES)
    scores = rescorer(directories, translator, name).scores(LINES, found)
    model, tokenizer = load_model(directories / name, device="cpu")
    longest = 8 if name == "other" else 10_000
    for line, translation, of_line in zip(LINES, found, scores, strict=True):
        for one, score in zip(translation.hypotheses, of_line, strict=True):
            if not line:
                assert score == 0
                continue
            ids = tokenizer(text_target=one.text)["input_ids"] if name == "other" else list(one.ids)
            labels = torch.tensor([ids[:longest]])
            with torch.no_grad():
                loss = model(**tokenizer(line, return_tensors="pt"), labels=labels).loss
            expected = one.score - float(loss) * labels.shape[1] / ((5 + labels.shape[1]) / 6) ** 0.6
            assert score == pytest.approx(expected, abs=1e-3)


def test_models_of_the_library_rescore_too(directories):
    torch.manual_seed(3)
    tokenizer = load_model(directories / "other", device="cpu")[1]
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "init_std": 0.5}
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "bos_token_id": 1}
    marian = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), **sizes, **heads, **special)).eval()
    translator = candidates(directories)
    found = translator.translate(LINES)
    scores = ModelRescorer.from_models(translator, [("marian", marian, tokenizer)]).scores(LINES, found)
    for line, translation, of_line in zip(LINES, found, scores, strict=True):
        for one, score in zip(translation.hypotheses, of_line, strict=True):
            labels = torch.tensor([tokenizer(text_target=one.text)["input_ids"]])
            with torch.no_grad():
                loss = marian(**tokenizer(line, return_tensors="pt"), labels=labels).loss
            expected = one.score - float(loss) * labels.shape[1] / ((5 + labels.shape[1]) / 6) ** 0.6
            assert score == pytest.approx(expected if line else 0.0, abs=1e-3)


def test_text_that_was_split_before_is_not_scored_by_others(directories):
    for first, second in (("first", "presplit"), ("presplit", "first")):
        translator = LineTranslator.from_model(*load_model(directories / first, device="cpu"))
        with refused(RescoringError, second, "pre-split"):
            rescorer(directories, translator, second)
    translator = LineTranslator.from_model(*load_model(directories / "presplit", device="cpu"))
    assert rescorer(directories, translator, "presplit").same_vocabulary == (True,)


def test_translate_and_evaluate_choose_by_the_sum(run, directories, tmp_path):
    translator = candidates(directories)
    found = translator.translate(LINES)
    scores = rescorer(directories, translator, "from-right", "other").scores(LINES, found)
    best = [
        max(zip(of_line, translation.hypotheses, strict=True), key=lambda pair: pair[0])
        for of_line, translation in zip(scores, found, strict=True)
    ]
    expected = [one.text for _, one in best]
    assert expected != [translation.text for translation in found]
    options = ["--num-beams", 5, *FLOAT32, "--rescore", "from-right", "other"]
    code, out, err = run("translate", "first", "in", *options)
    assert (code, out.split("\n")[:-1]) == (0, expected), err
    code, out, err = run("translate", "first", "in", "--nbest", 2, *options)
    rows = [line.split(" ||| ") for line in out.split("\n")[:-1]]
    assert [row[1].strip() for row in rows[::2]] == expected
    assert [float(row[2]) for row in rows[::2]] == pytest.approx([score for score, _ in best], abs=1e-4)


@pytest.mark.parametrize("how", [["same", "from-right"], ["mbr"]], ids=" ".join)
def test_evaluate_scores_what_was_chosen(run, how, tmp_path):
    options = ["--num-beams", 3, *FLOAT32, "--rescore", *how]
    _, translated, _ = run("translate", "first", "in", *options)
    written = tmp_path / "found"
    code, out, err = run("evaluate", "first", "--data", "in", "out", "--json", "--output", written, *options)
    assert code == 0, err
    assert written.read_text() == translated
    assert json.loads(out)["settings"]["rescore"] == how


def test_tasks_know_the_models_that_rescore(run, tmp_path):
    tasks = ("translate", "first", "in", *FLOAT32, "--num-beams", 4, "--output", tmp_path / "parts", "--tasks", 2)
    for number in range(2):
        assert run(*tasks, "--task", number, "--rescore", "same")[0] == 0
    assert run("join", tmp_path / "parts", "--output", tmp_path / "joined")[0] == 0
    code, out, err = run("translate", "first", "in", *FLOAT32, "--num-beams", 4, "--rescore", "same")
    assert (tmp_path / "joined").read_text() == out
    code, _, err = run(*tasks, "--task", 0, "--rescore", "other")
    assert code == 1 and "--rescore" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rescore", "mbr", "same"], "--rescore is mbr or models, not both"),
        (["--rescore", "in"], "--rescore in is a file, not a model: put the input before --rescore"),
        (["--rescore", "same", "--sample"], "--rescore MODEL needs the scores of a beam"),
        (["--rescore", "same", "--utility", "bleu"], "--utility is for --rescore mbr"),
        (["--rescore", "presplit"], "presplit cannot rescore"),
        (["--rescore", "nothing/there"], "nothing/there"),
    ],
)
def test_models_that_cannot_rescore_are_refused_in_one_sentence(run, words, message):
    code, _, err = run("translate", "first", "in", *FLOAT32, *words)
    assert code in (1, 2) and message in err and err.count("\n") == 1, err
