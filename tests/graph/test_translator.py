"""A `Translator` of a directory needs no torch, has the same tokens as the class, and ignores neighbouring lines."""

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import onnxruntime
import pytest
import torch
from searches import CHANGED, sharp
from small_models import save, save_translator
from transformers import AutoTokenizer

from vanilla_transformer import Translator, VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.session import open_session
from vanilla_transformer.graph.settings import DEFAULTS, WITHOUT_EFFECT, Settings, limit_of_new_tokens, with_defaults
from vanilla_transformer.machine import has_accelerator
from vanilla_transformer.model import generation_vanilla_transformer as generation
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation.live_models import GenerateSearch
from vanilla_transformer.translation.tokenizer_file import TokenizerFile

TEXTS = [
    "A dog runs.",
    "  two   spaces\t",
    "don't",
    "</s> <pad> is text",
    "Ünïcödé 中文 \u200d",
    "\ufdd0x",
    "naïve @@ x",
]
TEXTS += ["", "LINE\u2028separator", "1234567", "a" * 300, " leading", "trailing "]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_translator(tmp_path_factory.mktemp("model"), d_model=32, decoder_layers=2)


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece", "character", "presplit"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_a_tokenizers_file_gives_the_tokens_and_the_text_of_its_class(tmp_path, algorithm, lowercase):
    size = {"presplit": None, "character": 265}.get(algorithm, 300)
    tokenizer = train_tokenizer(TEXTS * 3, size, algorithm, lowercase=lowercase)
    tokenizer.save_pretrained(tmp_path)
    file = TokenizerFile.of(tmp_path)
    assert file is not None and file.vocab_size == len(tokenizer)
    ids = plain_text(tokenizer)(TEXTS)["input_ids"]
    assert file.encode(TEXTS) == ids
    assert file.decode(ids) == tokenizer.batch_decode(ids, skip_special_tokens=True)
    for text in TEXTS:
        assert file.detokenize(text) == tokenizer.detokenize(text)
    # Loaded, used and saved again it has more fields, which change nothing; so may one of a newer library.
    again = AutoTokenizer.from_pretrained(tmp_path, padding_side="left", of_a_newer_library=None)
    again(TEXTS, padding=True, truncation=True, max_length=4)
    again.save_pretrained(tmp_path)
    file = TokenizerFile.of(tmp_path)
    assert file is not None and file.encode(TEXTS) == ids
    AutoTokenizer.from_pretrained(tmp_path, of_a_newer_library=1).save_pretrained(tmp_path)
    assert TokenizerFile.of(tmp_path) is None
    tokenizer.add_tokens(["[new]"])
    tokenizer.save_pretrained(tmp_path)
    assert TokenizerFile.of(tmp_path) is None


def test_the_commands_translate_and_evaluate_without_torch(tmp_path, directory):
    program = """
import sys
from vanilla_transformer.cli import main
code = main(sys.argv[1:])
print(code, sorted({"torch", "transformers", "onnx"}.intersection(sys.modules)), file=sys.stderr)
"""

    def run(*words: str) -> str:
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, input="a b\n\n", capture_output=True, text=True, env=dict(os.environ))
        assert done.stderr == "0 []\n"
        return done.stdout

    model = VanillaTransformerForConditionalGeneration.from_pretrained(directory)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(directory)
    found = model.generate(**tokenizer("a b", return_tensors="pt"), num_return_sequences=2)
    texts = [" ".join(text.splitlines()) for text in tokenizer.batch_decode(found, skip_special_tokens=True)]
    lines = run("translate", str(directory), "--precision", "float32", "--nbest", "2").split("\n")
    assert [line.split(" ||| ")[1] for line in lines[:2]] == texts
    (tmp_path / "in").write_text("a b\n", encoding="utf-8")
    (tmp_path / "right").write_text(f"{texts[0]}\n", encoding="utf-8")
    pair = str(tmp_path / "in"), str(tmp_path / "right")
    assert run("evaluate", str(directory), "--data", *pair, "--metrics", "chrf").startswith("chrf = 100.00 ")


def test_a_translator_keeps_the_weights_that_it_was_made_with():
    model, other = sharp(0, vocab_size=260), sharp(1, vocab_size=260)
    tokenizer = train_tokenizer(["a b"], 260)
    translator = Translator(model, tokenizer, precision="float32")
    before = translator("a b")
    model.train().load_state_dict(other.state_dict())
    assert translator("a b") == before != Translator(other, tokenizer, precision="float32")("a b")
    assert model.training


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_line_is_translated_as_alone_whatever_stands_beside_it_and_from_any_thread(precision):
    lines = [f"{letter} b {'c d ' * number}" for number, letter in enumerate("aeiouxyz")]
    tokenizer = train_tokenizer(["a b"], 260)
    translator = Translator(sharp(3, vocab_size=260), tokenizer, precision=precision, num_return_sequences=2)
    alone = [[(one.text, one.score) for one in translator(line).hypotheses] for line in lines]
    together = threading.Barrier(4, timeout=60)

    def translate(_: int) -> list:
        together.wait()
        return [[(one.text, one.score) for one in found.hypotheses] for found in translator(lines)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(translate, range(4)):
            for some, expected in zip(found, alone, strict=True):
                assert [text for text, _ in some] == [text for text, _ in expected]
                assert [score for _, score in some] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_8_bits_give_nearly_the_scores_of_float32():
    tokenizer = train_tokenizer(["a b"], 260)
    model = sharp(4, vocab_size=260, d_model=64, d_ff=128, attention_bias=True, activation_function="gelu")
    with torch.no_grad():
        model.model.encoder.layers[0].feed_forward.w_1.weight.zero_()  # Rows of zeros have no largest number.
        model.model.encoder.layers[0].feed_forward.w_1.bias.zero_()
    scores = [Translator(model, tokenizer, precision=one)("a b c").score for one in ("float32", "int8")]
    assert 0 < abs(scores[0] - scores[1]) < 0.2


@pytest.mark.parametrize("name", CHANGED)
def test_every_setting_of_transformers_is_followed_or_unsupported(name):
    config = sharp(0).config.to_dict()
    own = {"length_penalty_type": "google", "max_length_beyond_source": 50, "num_beams": 2, "suppress_tokens": [9]}
    if name == "forced_eos_token_id":
        own["max_new_tokens"] = 9  # A sentence's own limit cuts.
    try:
        settings = Settings.of(config, own, {name: CHANGED[name]})
    except ModelError as error:
        assert name in str(error)
    else:
        assert (settings == Settings.of(config, own)) == (name in WITHOUT_EFFECT)


def test_a_model_without_this_package_has_the_same_defaults():
    google, huggingface = generation._PAPER_BEAM, generation._NO_BEAM
    assert {"google": google, "huggingface": huggingface} == DEFAULTS
    model = sharp(0)
    own = model.generation_config.to_diff_dict()
    assert with_defaults(own) == own | DEFAULTS["google"] | {"num_beams": 4, "num_return_sequences": 1}
    settings = Settings.of(model.config.to_dict(), own)
    assert settings.max_length_beyond_source == generation.MAX_LENGTH_BEYOND_SOURCE == 50
    for penalty in DEFAULTS:
        call = {"num_beams": 2, "length_penalty_type": penalty}
        found = with_defaults(call) | generation._beam_settings(call, {})
        assert found == with_defaults(call)
    for limits in ({}, {"max_length": 9}, {"max_length_beyond_source": 3}, {"max_length": 20, "max_new_tokens": 4}):
        same_for_all = generation._tokens_beyond_source(limits, {}) is None
        assert (limit_of_new_tokens(limits) is not None) == same_for_all


def test_why_the_graph_does_not_support_a_setting_is_logged_once(directory, caplog):
    caplog.set_level("INFO", "vanilla_transformer")
    with pytest.raises(ValueError, match="early_stopping"):
        Translator(directory, early_stopping="sometimes")("a")
    caplog.clear()
    Translator(directory, no_repeat_ngram_size=2)
    [told] = [record.getMessage() for record in caplog.records if "the ONNX graph" in record.getMessage()]
    assert "no_repeat_ngram_size=2" in told


def test_generate_translates_where_onnx_runtime_cannot_open_the_graph(directory, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise onnxruntime.capi.onnxruntime_pybind11_state.Fail("an operator is missing")

    expected = Translator(directory, precision="float32")("a b").text
    monkeypatch.setattr(onnxruntime, "InferenceSession", fail)
    caplog.set_level("INFO", "vanilla_transformer")
    translator = Translator(directory, precision="float32")
    assert translator("a b").text == expected and isinstance(translator.search, GenerateSearch)
    assert "an operator is missing" in caplog.text


def test_an_error_of_onnx_runtime_is_one_sentence(directory, monkeypatch):
    translator = Translator(directory)
    monkeypatch.setattr(translator.search, "_session", None)
    with pytest.raises(ModelError, match="ONNX Runtime could not translate"):
        translator("a")


def test_a_tokenizer_with_an_id_beyond_the_vocabulary_is_rejected(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 500
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="its tokenizer has 501 tokens"):
        Translator(tmp_path)


def test_damaged_directories_are_rejected_and_reported_by_the_loader(directory, tmp_path):
    model = VanillaTransformerForConditionalGeneration.from_pretrained(directory)
    tokenizer = VanillaTransformerTokenizer.from_pretrained(directory)
    with torch.no_grad():
        model.model.shared.weight[3, 3] = torch.nan
    save(model, tokenizer, tmp_path)
    with pytest.raises(ModelError, match="NaN"):
        open_session(tmp_path, {}, "float32")
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        Translator(tmp_path)
    weights = tmp_path / "model.safetensors"
    for content in (weights.read_bytes()[:-100], b"", b"\xff" * 100):
        weights.write_bytes(content)
        with pytest.raises(ModelError, match="cannot be loaded"):
            Translator(tmp_path)


@pytest.mark.parametrize("driver", ["dev/nvidiactl", "dev/dxg", "dev/nvmap", "dev/kfd", "Windows/System32/nvcuda.dll"])
def test_an_accelerator_is_looked_for_where_a_driver_is(tmp_path, monkeypatch, driver):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not has_accelerator(tmp_path)
    (tmp_path / driver).parent.mkdir(parents=True)
    (tmp_path / driver).touch()
    assert has_accelerator(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert has_accelerator(tmp_path) == (driver == "dev/kfd")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not has_accelerator(tmp_path)
