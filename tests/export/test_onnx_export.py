"""One graph gives the model's translations and scores to ONNX Runtime's own client, in 8 bits almost."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from guide_clients import guide_client, run_client
from refusals import refused
from safetensors.numpy import load_file
from safetensors.torch import save_file
from transformers import GenerationConfig

from vanilla_transformer import Translator, VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.to_onnx import export_onnx
from vanilla_transformer.graph import onnx_file
from vanilla_transformer.graph.onnx_file import renew
from vanilla_transformer.graph.supported import shapes
from vanilla_transformer.graph.weights import WEIGHTS
from vanilla_transformer.loading.models import load_model


class Client:
    """A session of the graph, which is given what is not its own default."""

    def __init__(self, folder: Path) -> None:
        self.session = onnxruntime.InferenceSession(folder / "translate.onnx")

    def __call__(self, ids: torch.Tensor, **given) -> list[np.ndarray]:
        inputs = {name: np.asarray(value) for name, value in given.items()}
        return self.session.run(None, {"input_ids": np.asarray(ids), **inputs})


def assert_as_generate(found: list[np.ndarray], expected, beams: int) -> None:
    """The same tokens, padding after them, and scores where there is a beam."""
    sequences, scores, lengths = found
    ours = torch.from_numpy(sequences).flatten(0, 1)
    theirs = expected.sequences[:, 1:]
    longest = theirs.shape[1]
    assert lengths.max() == longest
    assert torch.equal(ours[:, :longest], theirs) and not ours[:, longest:].any()
    if beams > 1:
        # A negative penalty multiplies the sum of up to sixty log-probabilities, and with it what float32 rounds.
        np.testing.assert_allclose(scores.ravel(), expected.sequences_scores, rtol=1e-5, atol=1e-4)


SETTINGS = {
    "the model's own": {},
    "three of three": {"num_beams": 3, "length_penalty": 1.5, "num_return_sequences": 3},
    "a wide beam": {"num_beams": 8, "length_penalty": 0.0},
    "four tokens": {"max_new_tokens": 4, "num_return_sequences": 4},
    "greedy": {"num_beams": 1},
}


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_graph_gives_generates_sequences_and_scores(onnx_export, spelled_backwards, words, settings, alone):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    client = Client(onnx_export)
    for batch in [[word] for word in words[:6]] if alone else [words]:
        inputs = tokenizer(batch, return_tensors="pt", padding=True)
        expected = model.generate(**inputs, **settings, return_dict_in_generate=True, output_scores=True)
        types = {"length_penalty": np.float32}
        given = {name: np.array([value], types.get(name, np.int64)) for name, value in settings.items()}
        if not alone:
            given["attention_mask"] = inputs["attention_mask"]
        found = client(inputs["input_ids"], **given)
        assert_as_generate(found, expected, settings.get("num_beams", 4))


OWN = {
    "a length": {"max_length": 4},
    "the library's length": {"max_length": 20},
    "a limit and a length": {"max_new_tokens": 2, "max_length": 9},
    "the library's penalty": {"length_penalty_type": "huggingface", "length_penalty": 0.7, "early_stopping": False},
    "the first that end": {"num_beams": 5, "early_stopping": True, "num_return_sequences": 2},
    "forbidden tokens": {"bad_words_ids": [[5]], "suppress_tokens": [6, 7]},
    "greedy, and an end at the limit": {"num_beams": 1, "max_length": 5, "forced_eos_token_id": 2},
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_the_graph_takes_the_models_settings_as_defaults(spelled_backwards, words, tmp_path, own: dict):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.generation_config.update(**own)
    assert export_onnx(model, tokenizer, tmp_path) == []
    inputs = tokenizer(words, return_tensors="pt", padding=True)
    found = Client(tmp_path)(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    expected = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
    assert_as_generate(found, expected, own.get("num_beams", 4))


ARCHITECTURES = {
    "learned positions": {"positional_encoding": "learned", "max_position_embeddings": 12, "attention_bias": True},
    "other widths": {"d_k": 7, "d_v": 7, "output_bias": True, "activation_function": "gelu"},
    "three embeddings": {"tie_word_embeddings": False, "num_heads": 1, "activation_function": "swish"},
}


@pytest.mark.parametrize("fields", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_every_architecture_translates_as_it_does_itself(tmp_path, spelled_backwards, words, fields: dict):
    _, tokenizer = load_model(spelled_backwards, device="cpu")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes | fields)
    ).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    export_onnx(model, tokenizer, tmp_path)
    client = Client(tmp_path)
    inputs = tokenizer(words[:10], return_tensors="pt", padding=True)
    for beams in (1, 3):
        found = client(inputs["input_ids"], attention_mask=inputs["attention_mask"], num_beams=np.array([beams]))
        expected = model.generate(**inputs, num_beams=beams, return_dict_in_generate=True, output_scores=True)
        assert_as_generate(found, expected, beams)


def test_ten_lines_of_python_translate(onnx_export, spelled_backwards, words):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    client = guide_client("onnxruntime")
    assert client in (onnx_export / "README.md").read_text(encoding="utf-8")
    expected = Translator(model, tokenizer, precision="float32")(words[0])
    text, score = run_client(client.replace("A dog runs.", words[0]), onnx_export).rsplit(maxsplit=1)
    assert (text, float(score)) == (expected.text, pytest.approx(expected.score, abs=1e-4))


def test_8_bits_translate_almost_the_same(onnx_export, spelled_backwards, words, tmp_path):
    assert main(["export", str(spelled_backwards), str(tmp_path), "--to", "onnx", "--quantization", "int8"]) == 0
    matrices = [one.astype(int) for one in load_file(tmp_path / WEIGHTS).values() if one.dtype == np.int8]
    # 255 · 64 twice is less than 2^15: on no processor is a sum of two products too large for 16 bits.
    assert len(matrices) > 10 and max(abs(one).max() for one in matrices) <= 64
    assert (tmp_path / WEIGHTS).stat().st_size < 0.4 * (onnx_export / WEIGHTS).stat().st_size
    _, tokenizer = load_model(spelled_backwards, device="cpu")
    clients = [Client(folder) for folder in (tmp_path, onnx_export)]
    for settings in ({"num_beams": np.array([1])}, {}):
        same = 0
        for word in words:
            ids = tokenizer([word], return_tensors="pt")["input_ids"]
            found, expected = (client(ids, **settings)[0][0, 0].tolist() for client in clients)
            same += found == expected
        assert same >= 0.8 * len(words)


def test_an_8_bit_export_is_translated_as_it_is_and_is_no_other_model(spelled_backwards, words, tmp_path, capsys):
    export_onnx(*load_model(spelled_backwards, device="cpu"), tmp_path, "int8")
    expected = [one.text for one in Translator(spelled_backwards, precision="int8")(words)]
    for precision in ("auto", "int8"):
        translator = Translator(tmp_path, precision=precision)
        assert [one.text for one in translator(words)] == expected and translator.precision == "int8"
    for precision in ("float32", "bfloat16"):
        with refused(ModelError, "8 bits", "auto or int8"):
            Translator(tmp_path, precision=precision)
    assert main(["info", str(tmp_path)]) == 1
    assert "8 bits" in capsys.readouterr().err


def test_the_graph_holds_no_weights_and_finds_nothing_beside_another_layout(spelled_backwards, words, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    export_onnx(model, tokenizer, tmp_path)
    graph, inputs = tmp_path / "translate.onnx", tokenizer(words[:3], return_tensors="pt", padding=True)
    assert graph.stat().st_size < 150_000
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    save_file({name: model.state_dict()[name] for name in shapes(model.config.to_dict())}, tmp_path / WEIGHTS)
    found = Client(tmp_path)(inputs["input_ids"], attention_mask=inputs["attention_mask"])
    assert_as_generate(found, model.generate(**inputs, return_dict_in_generate=True, output_scores=True), 4)
    model.config.d_ff *= 2
    VanillaTransformerForConditionalGeneration(model.config).save_pretrained(tmp_path)
    assert not graph.exists()  # Saving takes away what was true of other weights.
    export_onnx(load_model(spelled_backwards, device="cpu")[0], tokenizer, tmp_path / "other")
    (tmp_path / "other/translate.onnx").rename(graph)
    assert not Client(tmp_path)(inputs["input_ids"])[2].any()


def test_the_graph_finds_nothing_beside_other_settings_until_it_is_written_again(spelled_backwards, words, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    export_onnx(model, tokenizer, tmp_path)
    ids = tokenizer(words[:1], return_tensors="pt")["input_ids"]
    settings = GenerationConfig.from_pretrained(tmp_path)
    settings.max_new_tokens = 3
    settings.save_pretrained(tmp_path)
    assert not Client(tmp_path)(ids)[2].any()
    assert renew(tmp_path) is None
    assert 0 < Client(tmp_path)(ids)[2].max() <= 3


def test_the_graph_of_a_copy_by_links_is_written_to_a_file_of_its_own(spelled_backwards, tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    export_onnx(*load_model(spelled_backwards, device="cpu"), first)
    before = (first / "translate.onnx").read_bytes()
    for copy, link in ((second, os.link), (third, os.symlink)):
        shutil.copytree(first, copy, copy_function=link)
        settings = GenerationConfig.from_pretrained(copy, num_beams=2)
        (copy / "generation_config.json").unlink()
        settings.save_pretrained(copy)
        assert renew(copy) is None
        assert (copy / "translate.onnx").read_bytes() != before == (first / "translate.onnx").read_bytes()


def test_a_file_that_is_right_is_not_written_again(spelled_backwards, tmp_path, monkeypatch):
    export_onnx(*load_model(spelled_backwards, device="cpu"), tmp_path)
    monkeypatch.setattr(onnx_file, "atomic_replace", None)  # As in a directory that cannot be written.
    assert renew(tmp_path) is None and (tmp_path / "translate.onnx").is_file()


def test_settings_and_parts_that_the_graph_does_not_know_are_refused_by_name(spelled_backwards, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    attention = model.model.decoder.layers[0].self_attention
    for place, name, value, named in (
        (model.generation_config, "repetition_penalty", 1.2, "repetition_penalty"),
        (model.generation_config, "bad_words_ids", [[5, 6]], "bad_words_ids"),
        (attention, "slope", torch.nn.Parameter(torch.ones(4)), "self_attention.slope"),
        (model.config, "activation_function", "laplace", "laplace"),
    ):
        with pytest.MonkeyPatch.context() as patch, refused((ModelError, ValueError), named):
            patch.setattr(place, name, value, raising=False)
            export_onnx(model, tokenizer, tmp_path)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    widths = VanillaTransformerConfig(vocab_size=len(tokenizer), d_k=3, d_v=7, **sizes)
    with refused(ModelError, "d_k=3", "d_v=7"):
        export_onnx(VanillaTransformerForConditionalGeneration(widths).eval(), tokenizer, tmp_path)
    assert not list(tmp_path.iterdir())
    with refused(ModelError, spelled_backwards, "empty"):
        export_onnx(model, tokenizer, spelled_backwards)


def test_an_export_of_the_present_directory_has_its_name(spelled_backwards, tmp_path, monkeypatch):
    shutil.copytree(spelled_backwards, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    assert main(["export", ".", "--to", "onnx"]) == 0
    assert Path("mine-onnx", "translate.onnx").is_file()
