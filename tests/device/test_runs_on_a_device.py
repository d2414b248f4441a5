"""Whole runs on a device: they train without a wait in a step, decode, score and save a model that loads anywhere."""

import pytest
import small_tasks
import torch
from small_models import write_reversed

import vanilla_transformer
from vanilla_transformer import Translator
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import loop
from vanilla_transformer.training.loop import TrainingLoop

STEPS = {"max_steps": 12, "warmup_steps": 4, "save_steps": 6, "eval_steps": 6}


@pytest.fixture
def pairs(tmp_path) -> Recipe:
    pairs = {"train": 120, "dev": 12}
    corpora = {name: write_reversed(tmp_path, name, size, seed=0, longest=2) for name, size in pairs.items()}
    sizes = {**small_tasks._STEPS, "decoder_layers": 1}
    return Recipe.of(task="translation", examples=("one two",), **corpora, **sizes)


@pytest.fixture
def recurrent(pairs) -> Recipe:
    kept = {name: value for name, value in pairs.options.items() if name not in ("preset", "decoder_layers")}
    for name in ("encoder_layers", "d_ff", "num_heads"):
        kept.pop(name, None)
    return Recipe.of(**kept).with_options(architecture="recurrent")


@pytest.fixture
def step_waits(monkeypatch, waits) -> list[str]:
    """Lists the host's waits in the steps of a run, their batches' copies included."""
    listed: list[str] = []
    update = TrainingLoop._update

    def listening(self, step):
        with waits() as found:
            update(self, step)
        listed.extend(found)

    monkeypatch.setattr(TrainingLoop, "_update", listening)
    return listed


@pytest.mark.parametrize("name", ["pairs", "recurrent", "labelled", "tagged", "lines", "masked_lines"])
def test_a_run_trains_without_waits_and_its_model_loads_on_the_processor(
    name, request, device, step_waits, tmp_path, capsys
):
    recipe = request.getfixturevalue(name).with_options(**STEPS, output=str(tmp_path / "model"))
    run = vanilla_transformer.train(recipe)
    if name == "recurrent":
        step_waits = [wait for wait in step_waits if "modeling_recurrent" not in wait]
    assert step_waits == []
    model, tokenizer = load_model(str(run), device="cpu", translates=False)
    assert device in (tmp_path / "model" / "summary.json").read_text() or torch.cuda.is_available()
    assert all(weight.isfinite().all() for weight in model.parameters())
    if name == "pairs":
        on_device, tokenizer = load_model(str(run), device=device)
        assert on_device.device.type == device
        lines = ["one two", "three"]
        found = [line.text for line in Translator(on_device, tokenizer)(lines)]
        assert found == [line.text for line in Translator(on_device, tokenizer, device="cpu")(lines)]
        data = recipe.data.dev[0].parts
        there, here = (vanilla_transformer.evaluate(str(run), data, device=place) for place in (device, "cpu"))
        assert there.predictions == here.predictions


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_in_half_precision_learns_and_goes_on_to_the_same_weights(
    precision, pairs, device, train_until, tmp_path, capsys, monkeypatch
):
    recipe = pairs.with_options(**STEPS, output=str(tmp_path / "model"), precision=precision, max_grad_norm=1.0)
    vanilla_transformer.train(recipe)
    model, _ = load_model(tmp_path / "model", device="cpu")
    assert all(weight.isfinite().all() for weight in model.parameters())
    if device != "cuda":  # There gradients are summed in no fixed order.
        stopped = recipe.with_options(output=str(tmp_path / "stopped"))
        train_until(stopped, 9)
        monkeypatch.setattr(loop, "one_ahead", iter)  # Batches are no others when they are not made ahead.
        again = vanilla_transformer.train(stopped).directory / "model.safetensors"
        assert again.read_bytes() == (tmp_path / "model" / "model.safetensors").read_bytes()
