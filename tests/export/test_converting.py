"""`convert` and `export` from directory to directory: tokenizers, settings of `generate`, and what is refused."""

import json
from functools import partial
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece
import torch
from test_marian_models import opus, random_marian
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    MarianTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from vanilla_transformer import (
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.cli import main
from vanilla_transformer.translation import load_model, translate_lines

ENGLISH = ["the cat sat on the mat", "a dog runs in the park", "two men walk", "hello world this is a test"] * 20
GERMAN = ["die katze sass auf der matte", "ein hund läuft im park", "zwei männer gehen", "hallo welt"] * 20
NEW = ["the dog sat", "two cats walk in the park", "ein Hund?", "  spaces   and ﬁne ligatures ", "unknown 漢字", ""]


def sentencepieces(directory: Path) -> int:
    """Writes the three files of an OPUS-MT tokenizer, and gives the size of its vocabulary."""
    vocabulary = {"</s>": 0, "<unk>": 1}
    for name, lines in (("source", ENGLISH), ("target", GERMAN)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(directory / name),
            vocab_size=30,
            model_type="unigram",
            minloglevel=2,
        )
        (directory / f"{name}.model").rename(directory / f"{name}.spm")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{name}.spm"))
        for index in range(3, pieces.get_piece_size()):
            vocabulary.setdefault(pieces.id_to_piece(index), len(vocabulary))
    vocabulary["<pad>"] = len(vocabulary)
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    return len(vocabulary)


@pytest.fixture(scope="module")
def opus_directory(tmp_path_factory) -> Path:
    """An OPUS-MT model as downloaded, with random weights."""
    directory = tmp_path_factory.mktemp("opus")
    size = sentencepieces(directory)
    pad = size - 1
    model = random_marian(opus(vocab_size=size, pad_token_id=pad, decoder_start_token_id=pad))
    model.final_logits_bias[0, 0] += 1
    model.generation_config = GenerationConfig(
        num_beams=4,
        max_length=20,
        bad_words_ids=[[pad]],
        renormalize_logits=True,
        pad_token_id=pad,
        bos_token_id=0,
        eos_token_id=0,
        forced_eos_token_id=0,
        decoder_start_token_id=pad,
    )
    files = [directory / name for name in ("source.spm", "target.spm", "vocab.json")]
    MarianTokenizer(*map(str, files), source_lang="en", target_lang="de").save_pretrained(directory)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def converted(opus_directory: Path, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("converted") / "ours"
    assert main(["convert", str(opus_directory), str(output)]) == 0
    return output


def test_a_converted_tokenizer_gives_the_same_ids_and_the_same_text(opus_directory, converted):
    theirs, ours = AutoTokenizer.from_pretrained(opus_directory), AutoTokenizer.from_pretrained(converted)
    expected, actual = (tokenizer(NEW, text_target=GERMAN[: len(NEW)]) for tokenizer in (theirs, ours))
    assert actual["input_ids"] == expected["input_ids"] and actual["labels"] == expected["labels"]
    for ids in expected["labels"]:
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("changes", [{}, {"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 3}], ids=str)
def test_a_converted_model_decodes_with_the_settings_that_it_had(opus_directory, converted, changes):
    theirs, ours = (AutoModelForSeq2SeqLM.from_pretrained(path).eval() for path in (opus_directory, converted))
    assert isinstance(ours, VanillaTransformerForConditionalGeneration)
    inputs = AutoTokenizer.from_pretrained(converted)(NEW[:3], return_tensors="pt", padding=True)
    expected = theirs.generate(**inputs, **changes)
    assert len({tuple(row) for row in expected.tolist()}) > 1
    assert ours.generate(**inputs, **changes).tolist() == expected.tolist()


def test_a_converted_model_goes_on_to_ctranslate2(converted, tmp_path, monkeypatch, capsys):
    assert main(["export", str(converted), str(tmp_path / "ct2"), "--to", "ctranslate2"]) == 0
    model, tokenizer = load_model(converted, device="cpu")
    ids = tokenizer(NEW[:3])["input_ids"]
    inputs = tokenizer.pad({"input_ids": ids}, return_tensors="pt")
    expected = model.generate(**inputs, num_beams=1, max_length=12, forced_eos_token_id=None)[:, 1:].tolist()
    never = [["<pad>"]]
    # Two threads that wait for one another beside a busy process take a hundred times as long.
    monkeypatch.setattr(ctranslate2, "Translator", partial(ctranslate2.Translator, intra_threads=1))
    results = ctranslate2.Translator(str(tmp_path / "ct2")).translate_batch(
        [tokenizer.convert_ids_to_tokens(row) for row in ids],
        beam_size=1, max_decoding_length=11, suppress_sequences=never, return_end_token=True,
    )  # fmt: skip
    for row, result in zip(expected, results, strict=True):
        actual = tokenizer.convert_tokens_to_ids(result.hypotheses[0])
        assert row[: len(actual)] == actual and len(actual) > 0
    readme = (tmp_path / "ct2" / "README.md").read_text()
    assert "suppress_sequences=[['<pad>']]" in readme
    monkeypatch.chdir(tmp_path / "ct2")
    exec(readme.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.strip()


def test_a_converted_model_is_fine_tuned_by_the_trainer_and_not_by_train(converted, tmp_path, capsys):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("the cat\n" * 20)
    pairs = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    assert main(["train", "--from", str(converted), "--train", *pairs, "--output", str(tmp_path / "output")]) == 2
    assert "has the tokenizer of the model that it was converted from" in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


def test_a_converted_model_comes_back_bit_for_bit(opus_directory, converted, tmp_path, capsys):
    assert main(["convert", str(converted), str(tmp_path / "back")]) == 0
    assert "warning" not in capsys.readouterr().err
    theirs, back = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (opus_directory, tmp_path / "back"))
    assert type(back) is type(theirs)
    assert back.generation_config.to_diff_dict() == theirs.generation_config.to_diff_dict()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name
    assert isinstance(AutoTokenizer.from_pretrained(tmp_path / "back"), MarianTokenizer)


def test_a_converted_model_is_fine_tuned_as_any_other(converted, tmp_path):
    model, tokenizer = load_model(converted, device="cpu")
    sentences = zip(ENGLISH[:3], GERMAN[:3], strict=True)
    pairs = [dict(tokenizer(english, text_target=german)) for english, german in sentences]
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            tmp_path,
            max_steps=25,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=pairs,
        eval_dataset=pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.7 * before
    trainer.save_model(tmp_path / "tuned")
    inputs = tokenizer(ENGLISH[:3], return_tensors="pt", padding=True)
    tuned = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tuned").eval()
    # The settings that came from Marian are still there: length penalty, limit, forbidden padding.
    assert tuned.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
    assert tuned.generate(**inputs).tolist() == model.eval().generate(**inputs).tolist()


def test_a_converted_model_translates_lines(converted, tmp_path, capsys):
    text, translations = tmp_path / "in.txt", tmp_path / "out.txt"
    text.write_text("the cat\n\ntwo men\n")
    assert main(["translate", str(converted), str(text), "--output", str(translations)]) == 0
    model, tokenizer = load_model(converted, device="cpu")
    output = model.generate(**tokenizer(["the cat"], return_tensors="pt"))
    first = tokenizer.decode(output[0], skip_special_tokens=True)
    lines = translations.read_text().split("\n")
    assert lines[0] == first and lines[1] == "" and len(lines) == 4


def test_our_model_loads_as_a_marian_model_with_its_tokenizer(spelled_backwards, tmp_path, words, capsys):
    output = tmp_path / "marian"
    assert main(["export", str(spelled_backwards), str(output), "--to", "marian"]) == 0
    warnings = capsys.readouterr().err
    assert "no Google length penalty" in warnings and "max_length is set to 1024" in warnings
    ours, tokenizer = load_model(spelled_backwards, device="cpu")
    theirs, their_tokenizer = load_model(output, device="cpu")
    assert theirs.config.model_type == "marian"
    inputs = tokenizer(words, return_tensors="pt", padding=True)
    assert their_tokenizer(words)["input_ids"] == tokenizer(words)["input_ids"]
    assert their_tokenizer("</s>")["input_ids"] == tokenizer("</s>")["input_ids"]
    expected = ours.generate(**inputs, num_beams=1)
    assert torch.equal(theirs.generate(**inputs, num_beams=1)[:, : expected.shape[1]], expected)
    with torch.no_grad():
        logits = [model(**inputs, decoder_input_ids=expected).logits for model in (ours, theirs)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=1e-5)
    for model in (ours, theirs):
        lines = translate_lines(model, tokenizer, words[:3], scores=True, num_beams=2, num_return_sequences=2)
        scores = [hypothesis.score for line in lines for hypothesis in line.hypotheses]
        assert len(scores) == 6 and all(score < 0 for score in scores)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["convert", "{tmp}/nothing", "{tmp}/out"], "There is no model directory {tmp}/nothing"),
        (["convert", "{tmp}", "{tmp}/out"], "has no config.json"),
        (
            ["convert", "{tmp}/t5", "{tmp}/out"],
            "is a t5 model, which cannot be converted; supported types: marian, vanilla_transformer",
        ),
        (["convert", "{tmp}/odd", "{tmp}/out"], "{tmp}/odd cannot be loaded"),
        (["convert", "{model}", "{tmp}"], "{tmp} is not empty"),
        (["export", "{model}", "{tmp}", "--to", "marian"], "{tmp} is not empty"),
        (["export", "{tmp}/t5", "{tmp}/out", "--to", "onnx"], "of the type t5, not vanilla_transformer"),
        (
            ["export", "{model}", "{tmp}/out", "--to", "onnx", "--quantization", "int4"],
            "is not available for onnx: use float32, i",
        ),
        (
            ["export", "{model}", "{tmp}/out", "--to", "ctranslate2", "--quantization", "int4"],
            "is not available for ctranslate2: use bfloat16, f",
        ),
        (
            ["export", "{model}", "{tmp}/out", "--to", "marian", "--quantization", "int8"],
            "is not available for marian: use f",
        ),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(spelled_backwards, tmp_path, capsys, words, sentence):
    for name, model_type in (("t5", "t5"), ("odd", "no-such-type")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": model_type}))
    places = {"tmp": str(tmp_path), "model": str(spelled_backwards)}
    assert main([word.format(**places) for word in words]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and sentence.format(**places) in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [VanillaTransformerDecoderForCausalLM, VanillaTransformerEncoderForMaskedLM])
def test_models_of_one_stack_are_refused(tmp_path, capsys, kind: type):
    layers = "decoder_layers" if kind is VanillaTransformerDecoderForCausalLM else "encoder_layers"
    config = kind.config_class(vocab_size=20, d_model=16, d_ff=32, num_heads=2, **{layers: 1})
    kind(config).save_pretrained(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "onnx"]) == 1
    assert f" {config.model_type}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named(spelled_backwards, tmp_path, capsys, missing):
    missing("ctranslate2", "onnx", "onnxruntime")
    assert main(["export", str(spelled_backwards), str(tmp_path / "out"), "--to", "onnx"]) == 2
    assert (
        "The package onnx is not installed: run `pip install 'vanilla-transformer[export]'`" in capsys.readouterr().err
    )
