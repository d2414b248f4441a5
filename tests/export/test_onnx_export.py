"""ONNX Runtime gives the model's translations and scores, without torch and without transformers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import GenerationConfig

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.export import to_onnx
from vanilla_transformer.export.onnx_quantization import quantize_graphs
from vanilla_transformer.translation import load_model, translate_lines
from vanilla_transformer.translation.onnx_decode import Decoder

INT8 = onnx.TensorProto.INT8
WITHOUT_LIBRARIES = """
import runpy, sys
for name in ("torch", "transformers", "vanilla_transformer"):
    sys.modules[name] = None  # An import of it fails.
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def exported(onnx_export: Path) -> Path:
    return onnx_export


@pytest.fixture(scope="module")
def greedy(spelled_backwards: Path, words: list[str]) -> list[str]:
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    output = model.generate(**tokenizer(words, return_tensors="pt", padding=True), num_beams=1)
    return tokenizer.batch_decode(output, skip_special_tokens=True)


@pytest.fixture(scope="module")
def beam(spelled_backwards: Path, words: list[str]) -> list[str]:
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    output = model.generate(**tokenizer(words[:32], return_tensors="pt", padding=True))
    return tokenizer.batch_decode(output, skip_special_tokens=True)


@pytest.mark.parametrize("options", [[], ["--num-beams", "1"]], ids=["beam", "greedy"])
def test_the_decoder_beside_the_export_needs_neither_torch_nor_transformers(exported, words, greedy, beam, options):
    expected = greedy[:31] if options else beam[:31]
    assert len(set(expected)) > 20
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES, str(exported / "decode.py"), *options],
        input="\n".join(["", *words[:31]]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.splitlines() == ["", *expected]  # A line for each line.


def test_the_graphs_give_the_models_numbers_for_any_batch_and_length(exported, spelled_backwards):
    model, _ = load_model(spelled_backwards, device="cpu")
    encoder = onnxruntime.InferenceSession(exported / "encoder_model.onnx")
    decoder = onnxruntime.InferenceSession(exported / "decoder_model.onnx")
    for batch, source_length, target_length in ((1, 1, 1), (3, 9, 4), (2, 6, 6)):
        source = torch.randint(4, 260, (batch, source_length))
        target = torch.randint(4, 260, (batch, target_length))
        mask = torch.ones_like(source)
        mask[-1, 1:] = 0
        (states,) = encoder.run(None, {"input_ids": source.numpy(), "attention_mask": mask.numpy()})
        logits, *_ = decoder.run(
            None,
            {
                "input_ids": target.numpy(),
                "encoder_attention_mask": mask.numpy(),
                "encoder_hidden_states": states,
            },
        )
        with torch.no_grad():
            expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits.numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.processor
def test_int8_is_smaller_and_translates_almost_the_same(exported, tmp_path, words, greedy):
    shutil.copytree(exported, tmp_path / "int8")
    quantize_graphs(tmp_path / "int8")
    for name in ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"):
        graph = onnx.load(tmp_path / "int8" / name).graph
        rounded = {part.name: onnx.numpy_helper.to_array(part) for part in graph.initializer if part.data_type == INT8}
        products = [node.input[1] for node in graph.node if node.op_type == "MatMulInteger"]
        matrices = [rounded[name].astype(int) for name in products]
        # 255 · 64 twice is less than 2^15: on no processor is a sum of two products too large for 16 bits.
        assert matrices and max(abs(part).max() for part in matrices) <= 64
        assert (tmp_path / "int8" / name).stat().st_size < (exported / name).stat().st_size
    actual = Decoder(tmp_path / "int8").translate(words, num_beams=1)
    assert sum(a == b for a, b in zip(actual, greedy, strict=True)) >= 0.8 * len(words)


def test_forbidden_tokens_and_limits_are_the_models(exported, spelled_backwards, words):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    decoder = Decoder(exported)
    forbidden = tokenizer.convert_tokens_to_ids("a")
    changes = {"bad_words_ids": [[forbidden]], "max_length": 5, "forced_eos_token_id": 2}
    decoder.settings |= {**changes, "max_length_beyond_source": None}
    output = model.generate(**tokenizer(words, return_tensors="pt", padding=True), num_beams=1, **changes)
    assert decoder.translate(words, num_beams=1) == tokenizer.batch_decode(output, skip_special_tokens=True)


@pytest.mark.parametrize(
    "own",
    [
        {"max_new_tokens": 3},
        {"max_length": 4},
        {"max_length": 20},
        {"max_new_tokens": 2, "max_length": 9},
        {"max_length_beyond_source": 0},
        {"max_length_beyond_source": None},
        {"max_length_beyond_source": None, "max_length": 6},
    ],
    ids=str,
)
def test_a_length_in_the_settings_is_the_one_that_the_model_follows(exported, spelled_backwards, words, own: dict):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.generation_config.update(**own, num_beams=1, suppress_tokens=[tokenizer.eos_token_id])
    inputs = tokenizer(words[:5], return_tensors="pt", padding=True)
    written = model.generate(**inputs)[:, 1:].ne(tokenizer.pad_token_id).sum(1)
    decoder = Decoder(exported)
    decoder.settings |= own
    assert decoder.limits(inputs["attention_mask"].sum(1).tolist(), {}) == written.tolist()


def test_learned_positions_export_too(tmp_path, spelled_backwards, words, capsys):
    _, tokenizer = load_model(spelled_backwards, device="cpu")
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1,
        positional_encoding="learned", max_position_embeddings=12, attention_bias=True, output_bias=True,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "learned")
    tokenizer.save_pretrained(tmp_path / "learned")
    assert main(["export", str(tmp_path / "learned"), str(tmp_path / "onnx"), "--to", "onnx"]) == 0
    output = model.generate(**tokenizer(words, return_tensors="pt", padding=True), num_beams=1)
    assert output.shape[1] == 13  # It never learned to end: the positions do.
    long = "a" * 30
    expected = [line.text for line in translate_lines(model, tokenizer, [long, "ab"], num_beams=1)]
    assert Decoder(tmp_path / "onnx").translate([long, "ab"], num_beams=1) == expected
    assert "too long for the model, and cut: aaa" in capsys.readouterr().err
    assert Decoder(tmp_path / "onnx").translate(words, num_beams=1) == tokenizer.batch_decode(
        output, skip_special_tokens=True
    )


@pytest.mark.parametrize("alone", [False, True], ids=["together", "alone"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_beams": 3, "length_penalty": 1.5, "num_return_sequences": 3},
        {"num_beams": 2, "length_penalty_type": "huggingface", "length_penalty": 0.7, "early_stopping": False},
        {"num_beams": 5, "early_stopping": True, "num_return_sequences": 2},
        {"length_penalty": -1.0},
        {"length_penalty": 0.0, "max_length_beyond_source": 0},
        {"max_new_tokens": 4, "num_return_sequences": 4},
        {"num_beams": 1},
    ],
    ids=str,
)
def test_beam_search_is_generates_sequences_and_scores(
    exported, spelled_backwards, words, settings: dict, alone: bool
):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    decoder = Decoder(exported)
    batches = [[word] for word in words[:12]] if alone else [words]
    for batch in batches:
        inputs = tokenizer(batch, return_tensors="pt", padding=True)
        expected = model.generate(**inputs, **settings, return_dict_in_generate=True)
        found = decoder.generate([tokenizer(word)["input_ids"] for word in batch], **settings)
        hypotheses = [hypothesis for best in found for hypothesis in best]
        length = expected.sequences.shape[1] - 1
        padded = [one.tokens + [tokenizer.pad_token_id] * (length - len(one.tokens)) for one in hypotheses]
        assert padded == expected.sequences[:, 1:].tolist()
        if settings.get("num_beams") != 1:
            scores = np.array([one.score for one in hypotheses])
            np.testing.assert_allclose(scores, expected.sequences_scores.numpy(), atol=1e-4)
        else:
            assert {one.score for one in hypotheses} == {None}


class Graph:
    """What stands for a graph that was never exported: the model itself, as the export reads it."""

    def __init__(self, model: VanillaTransformerForConditionalGeneration, name: str) -> None:
        kinds = {"encoder_model": to_onnx.Encode, "decoder_model": to_onnx._Begin}
        self.module = kinds.get(name, to_onnx._GoOn)(model)
        parts = to_onnx.CACHE_PARTS if name == "decoder_model" else to_onnx.CACHE_PARTS[:2]
        layers = range(model.config.decoder_layers)
        self.names = ["logits", *(f"present.{layer}.{part}" for layer in layers for part in parts)]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in self.names]

    @torch.no_grad()
    def run(self, names: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        if isinstance(self.module, to_onnx._GoOn):
            order = sorted((n for n in tensors if n.startswith("past")), key=lambda n: (int(n.split(".")[1]), n))
            tensors["past_key_values"] = [tensors.pop(name) for name in order]
        outputs = self.module(**tensors)
        return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


@pytest.mark.parametrize("seed", range(4))
def test_beam_search_equals_generate_on_models_that_are_sure_of_nothing(
    tmp_path, spelled_backwards, words, monkeypatch, seed: int
):
    _, tokenizer = load_model(spelled_backwards, device="cpu")
    torch.manual_seed(seed)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        d_ff=32,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=2,
        output_bias=True,
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.3)
    model.lm_head.bias.data[tokenizer.eos_token_id] = 1.0
    monkeypatch.setattr(to_onnx, "_export_graphs", lambda model, output: None)
    session = onnxruntime.InferenceSession  # The model itself may have some, which it does not read from files.
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda graph, *args, **kwargs: (
            Graph(model, graph.stem) if isinstance(graph, Path) else session(graph, *args, **kwargs)
        ),
    )
    to_onnx.export_onnx(model, tokenizer, tmp_path)
    decoder, inputs = Decoder(tmp_path), tokenizer(words[:10], return_tensors="pt", padding=True)
    lengths = set()
    for beyond, forced in ((0, None), (1, None), (2, None), (5, None), (2, tokenizer.eos_token_id)):
        decoder.settings["forced_eos_token_id"] = forced
        settings = {"max_length_beyond_source": beyond, "length_penalty": 1.5}
        expected = model.generate(**inputs, **settings, forced_eos_token_id=forced, return_dict_in_generate=True)
        sources = [tokenizer(word)["input_ids"] for word in words[:10]]
        found = [best[0] for best in decoder.generate(sources, **settings)]
        length = expected.sequences.shape[1] - 1
        padded = [one.tokens + [0] * (length - len(one.tokens)) for one in found]
        assert padded == expected.sequences[:, 1:].tolist()
        np.testing.assert_allclose([one.score for one in found], expected.sequences_scores.numpy(), atol=1e-4)
        lengths |= {len(one.tokens) for one in found}
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("setting", "value"), [("repetition_penalty", 1.2), ("min_length", 3), ("bad_words_ids", [[5, 6]])]
)
def test_settings_that_the_decoder_does_not_have_are_refused(exported, tmp_path, setting: str, value):
    shutil.copytree(exported, tmp_path / "other")
    path = tmp_path / "other" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {setting: value}))
    with pytest.raises(ValueError, match=f"{setting}=.* is not to be had with an exported model: take it out"):
        Decoder(tmp_path / "other")


def test_a_beam_that_was_set_to_one_in_memory_is_exported(spelled_backwards, tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "_export_graphs", lambda model, output: None)
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.generation_config.num_beams = 1
    to_onnx.export_onnx(model, tokenizer, tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).num_beams == 1
