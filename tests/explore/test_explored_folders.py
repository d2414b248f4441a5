"""The folder that `explore` writes: what is in it, what it replays, and what it declines."""

import json
from pathlib import Path

import numpy as np
import torch
from exploring import run_of
from refusals import refused
from torch import nn

from vanilla_transformer.cli import main
from vanilla_transformer.errors import ModelError
from vanilla_transformer.explore import packing
from vanilla_transformer.explore.computable import family
from vanilla_transformer.explore.static_site import write_page


def about(folder: Path) -> dict:
    return json.loads((folder / "model" / "model.json").read_text(encoding="utf-8"))


def test_the_command_writes_a_folder_that_names_no_other_host(saved, tmp_path, capsys):
    output = tmp_path / "page"
    assert main(["explore", str(saved), "--output", str(output), "--documentation", "../"]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    assert (output / "vendor" / "LICENSE-d3").is_file() and (output / "vendor" / "LICENSE-tokenizers").is_file()
    policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:"
    assert policy in (output / "index.html").read_text(encoding="utf-8")
    own = [path for path in output.glob("*") if path.suffix in (".js", ".html", ".css")]
    assert len(own) > 10
    for path in own:
        text = path.read_text(encoding="utf-8").replace("http://localhost:8000", "")
        assert "http://" not in text and "https://" not in text, path.name
    assert about(output)["examples"] == ["a dog"] and about(output)["training"] is None


def test_a_weight_that_is_tied_is_there_once(explored):
    one = explored("plain")
    weights = np.fromfile(one.folder / "model" / "weights.bin", "<f4")
    assert len(weights) == sum(weight.numel() for weight in one.model.parameters())
    offset, shape = about(one.folder)["tensors"]["lm_head.weight"]
    found = weights[offset : offset + int(np.prod(shape))].reshape(shape)
    np.testing.assert_array_equal(found, one.model.lm_head.weight.detach().numpy())


def test_replay_takes_as_many_checkpoints_as_fit(explored, tmp_path, monkeypatch):
    one = explored("plain")
    run = run_of(one.model, tmp_path / "run", [10, 20, 30, 40, 50, 60])
    write_page(one.model, one.tokenizer, tmp_path / "all", name="all", examples=["a"], run=run)
    training = about(tmp_path / "all")["training"]
    assert training["steps"] == [10, 20, 30, 40, 50, 60]
    assert training["curve"] == [{"step": 10, "loss": 2.5}, {"step": 10, "dev_loss": 2.25}]
    folder = tmp_path / "all" / "model"
    size = sum(path.stat().st_size for path in folder.glob("step-*.bin")) / 6
    exact = (folder / "weights.bin").stat().st_size
    assert size < exact / 2.5
    monkeypatch.setattr("vanilla_transformer.explore.static_site.MAX_BYTES", int(exact + 3.2 * size))
    write_page(one.model, one.tokenizer, tmp_path / "some", name="some", examples=["a"], run=run)
    some = about(tmp_path / "some")["training"]["steps"]
    assert len(some) == 3 and {10, 60} <= set(some)
    files = (tmp_path / "some" / "model").glob("*.bin")
    assert sum(path.stat().st_size for path in files) <= exact + 3.2 * size


def test_8_bits_are_the_weights_within_half_a_step():
    weights = {"a": torch.randn(5, 7), "b": torch.randn(4), "c": torch.zeros(2, 3)}
    places, _ = packing.pack(weights)
    packed = packing.pack_8_bits(weights, places)
    floats, numbers = np.frombuffer(packed[: 4 * 11], "<f4"), np.frombuffer(packed[4 * 11 :], "i1")
    # Each row has all of its 127 steps.
    assert np.abs(numbers[:35].reshape(5, 7)).max(axis=1).tolist() == [127] * 5
    a = numbers[:35].reshape(5, 7) * floats[:5, None]
    assert (np.abs(a - weights["a"].numpy()) <= floats[:5, None] * 0.5001).all()
    np.testing.assert_array_equal(floats[5:9], weights["b"].numpy())


def test_models_that_the_page_does_not_compute_are_declined(explored, tmp_path, monkeypatch):
    with refused(ModelError, "Linear"):
        family(nn.Linear(2, 2))  # type: ignore[arg-type]
    one = explored("classifier")
    for name, value in (("activation_function", "mish"), ("problem_type", "regression")):
        with monkeypatch.context() as patch:
            patch.setattr(one.model.config, name, value)
            with refused(ModelError, value):
                family(one.model)
    one.model.classifier.lora = nn.Linear(2, 2)
    try:
        with refused(ModelError, "classifier.lora"):
            write_page(one.model, one.tokenizer, tmp_path / "page", name="page")
    finally:
        del one.model.classifier.lora
    assert not (tmp_path / "page").exists()
