"""`convert` from directory to directory: tokenizers, settings of `generate`, and what is refused."""

from pathlib import Path

import pytest
import torch
from opus_models import GERMAN, opus, random_marian, write_opus
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer

from vanilla_transformer import Translator, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.export.conversion import as_marian
from vanilla_transformer.loading.models import load_model

NEW = ["the dog sat", "two cats walk in the park", "ein Hund?", "  spaces   and ﬁne ligatures ", "unknown 漢字", ""]


@pytest.fixture(scope="module")
def opus_directory(tmp_path_factory) -> Path:
    """An OPUS-MT model as downloaded, with random weights."""
    return write_opus(tmp_path_factory.mktemp("opus"))


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


def test_a_converted_model_comes_back_bit_for_bit(opus_directory, converted, tmp_path, capsys):
    assert main(["convert", str(converted), str(tmp_path / "back")]) == 0
    assert "warning" not in capsys.readouterr().err
    theirs, back = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (opus_directory, tmp_path / "back"))
    assert type(back) is type(theirs)
    assert back.generation_config.to_diff_dict() == theirs.generation_config.to_diff_dict()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name
    assert isinstance(AutoTokenizer.from_pretrained(tmp_path / "back"), MarianTokenizer)


def test_dropouts_are_kept_and_layer_drop_is_said_to_be_lost(opus_directory, tmp_path, capsys):
    dropouts = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    random_marian(opus(**dropouts, encoder_layerdrop=0.1)).save_pretrained(tmp_path / "theirs")
    AutoTokenizer.from_pretrained(opus_directory).save_pretrained(tmp_path / "theirs")
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert "encoder_layerdrop is dropped" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "back")]) == 0
    for place in ("ours", "back"):
        config = AutoConfig.from_pretrained(tmp_path / place)
        assert {name: getattr(config, name) for name in dropouts} == dropouts


def test_our_model_loads_as_a_marian_model_with_its_tokenizer(spelled_backwards, tmp_path, words, capsys):
    output = tmp_path / "marian"
    assert main(["convert", str(spelled_backwards), str(output)]) == 0
    warnings = capsys.readouterr().err
    assert "no Google length penalty" in warnings and "max_length is set to 1024" in warnings
    ours, tokenizer = load_model(spelled_backwards, device="cpu")
    theirs, their_tokenizer = MarianMTModel.from_pretrained(output).eval(), AutoTokenizer.from_pretrained(output)
    inputs = tokenizer(words, return_tensors="pt", padding=True)
    assert their_tokenizer(words)["input_ids"] == tokenizer(words)["input_ids"]
    assert their_tokenizer("</s>")["input_ids"] == tokenizer("</s>")["input_ids"]
    expected = ours.generate(**inputs, num_beams=1)
    assert torch.equal(theirs.generate(**inputs, num_beams=1)[:, : expected.shape[1]], expected)
    with torch.no_grad():
        logits = [model(**inputs, decoder_input_ids=expected).logits for model in (ours, theirs)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=1e-5)
    for model in (ours, theirs):
        lines = Translator(model, tokenizer, num_beams=2, num_return_sequences=2)(words[:3])
        scores = [hypothesis.score for line in lines for hypothesis in line.hypotheses]
        assert len(scores) == 6 and all(score < 0 for score in scores)
    ours.generation_config.max_length = 7  # Which beats the limit beyond the source.
    assert as_marian(ours, tokenizer)[0].generation_config.max_length == 7


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("convert {tmp}/t5 {tmp}/out", "is a t5 model, which cannot be converted; supported types: marian"),
        ("convert {model} {tmp}", "{tmp} is not empty"),
    ],
)
def test_mistakes_get_one_sentence_and_leave_nothing(spelled_backwards, tmp_path, capsys, words, sentence):
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5"}')
    places = {"tmp": str(tmp_path), "model": str(spelled_backwards)}
    assert main(words.format(**places).split()) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and sentence.format(**places) in error
    assert not (tmp_path / "out").exists()
