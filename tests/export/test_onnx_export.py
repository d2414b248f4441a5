"""ONNX Runtime gives the model's greedy translations, without torch and without transformers."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import GenerationConfig

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.export import to_onnx
from vanilla_transformer.export.onnx_decode import GreedyDecoder
from vanilla_transformer.export.to_onnx import quantize_graphs
from vanilla_transformer.translation import load_model, translate_lines

INT8 = onnx.TensorProto.INT8
WITHOUT_LIBRARIES = """
import runpy, sys
for name in ("torch", "transformers", "vanilla_transformer"):
    sys.modules[name] = None  # An import of it fails.
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def exported(spelled_backwards: Path, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("onnx") / "export"
    assert main(["export", str(spelled_backwards), str(output), "--to", "onnx"]) == 0
    return output


@pytest.fixture(scope="module")
def greedy(spelled_backwards: Path, words: list[str]) -> list[str]:
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    output = model.generate(**tokenizer(words, return_tensors="pt", padding=True), num_beams=1)
    return tokenizer.batch_decode(output, skip_special_tokens=True)


def test_the_decoder_beside_the_export_needs_neither_torch_nor_transformers(exported, words, greedy):
    assert len(set(greedy)) > 20
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES, str(exported / "decode.py")],
        input="\n".join(["", *words]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.splitlines() == ["", *greedy]  # A line for each line.


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
        rounded = [onnx.numpy_helper.to_array(part) for part in graph.initializer if part.data_type == INT8]
        matrices = [part.astype(int) for part in rounded if part.ndim == 2]
        # 255 · 64 twice is less than 2^15: on no processor is a sum of two products too large for 16 bits.
        assert matrices and max(abs(part).max() for part in matrices) <= 64
        assert (tmp_path / "int8" / name).stat().st_size < (exported / name).stat().st_size
    actual = GreedyDecoder(tmp_path / "int8").translate(words)
    assert sum(a == b for a, b in zip(actual, greedy, strict=True)) >= 0.8 * len(words)


def test_forbidden_tokens_and_limits_are_the_models(exported, spelled_backwards, words):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    decoder = GreedyDecoder(exported)
    forbidden = tokenizer.convert_tokens_to_ids("a")
    changes = {"bad_words_ids": [[forbidden]], "max_length": 5, "forced_eos_token_id": 2}
    decoder.settings |= {**changes, "max_length_beyond_source": None}
    output = model.generate(**tokenizer(words, return_tensors="pt", padding=True), num_beams=1, **changes)
    assert decoder.translate(words) == tokenizer.batch_decode(output, skip_special_tokens=True)


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
    decoder = GreedyDecoder(exported)
    decoder.settings |= own
    assert decoder._limits(inputs["attention_mask"].numpy()).tolist() == written.tolist()


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
    assert GreedyDecoder(tmp_path / "onnx").translate([long, "ab"]) == expected
    assert "too long for the model, and cut: aaa" in capsys.readouterr().err
    assert GreedyDecoder(tmp_path / "onnx").translate(words) == tokenizer.batch_decode(
        output, skip_special_tokens=True
    )


def test_a_beam_that_was_set_to_one_in_memory_is_exported(spelled_backwards, tmp_path, monkeypatch):
    monkeypatch.setattr(to_onnx, "_export_graphs", lambda model, output: None)
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    model.generation_config.num_beams = 1
    to_onnx.export_onnx(model, tokenizer, tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).num_beams == 1
