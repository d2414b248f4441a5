"""Recurrent models are trained, averaged, loaded and scored by the same commands as the Transformer."""

import json
import random

import numpy as np
import pytest
import torch
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import pipeline

from vanilla_transformer import RecurrentEncoderDecoderForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.cost import training_flops
from vanilla_transformer.errors import SettingError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for
from vanilla_transformer.training.run import train


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Recipe:
    """Words whose letters are turned round."""
    directory, draw = tmp_path_factory.mktemp("letters"), random.Random(0)
    for name, size in (("train", 400), ("dev", 20)):
        words = ["".join(draw.choices("abcdef", k=draw.randint(2, 5))) for _ in range(size)]
        (directory / f"{name}.tsv").write_text(
            "".join(f"{' '.join(word)}\t{' '.join(word[::-1])}\n" for word in words)
        )
    return Recipe.of(
        train=(str(directory / "train.tsv"),),
        dev=(str(directory / "dev.tsv"),),
        architecture="recurrent",
        attention="luong-dot",
        tokenizer_algorithm="character",
        preset="tiny",
        d_model=48,
        dropout=0.1,
        vocab_size=260,
        max_steps=160,
        warmup_steps=20,
        learning_rate=0.01,
        batch_tokens=500,
        batches_per_step=2,
        save_steps=40,
        average_checkpoints=2,
        metrics=("per",),
        precision="float32",
    )


@pytest.fixture(scope="module")
def trained(recipe, tmp_path_factory):
    return train(recipe.with_options(output=str(tmp_path_factory.mktemp("run") / "model")))


def test_the_run_learns_and_its_model_is_loaded_by_every_command(trained, capsys, tmp_path):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["scores"]["dev"][0]["value"] < 30
    resolved = load_recipe(trained / "recipe.yaml")
    assert (
        resolved.optimization.learning_rate,
        resolved.optimization.max_grad_norm,
        resolved.model.encoder_layers,
    ) == (0.01, 5.0, 2)
    rates = [
        record["learning_rate"] for record in map(json.loads, (trained / "metrics.jsonl").open()) if "loss" in record
    ]
    assert rates == pytest.approx([0.01] * len(rates))
    (tmp_path / "in.txt").write_text("a b c\n")
    assert not main(["translate", str(trained), str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")])
    translate = pipeline("translation", model=str(trained))
    assert (tmp_path / "out.txt").read_text().strip() == translate("a b c")[0]["translation_text"]
    assert isinstance(translate.model, RecurrentEncoderDecoderForConditionalGeneration)
    assert not main(["evaluate", str(trained), "--data", load_recipe(trained / "recipe.yaml").data.dev[0].parts[0]])
    assert "per = " in capsys.readouterr().out


def test_commands_that_do_not_take_recurrent_models_say_so(trained, capsys, tmp_path):
    more = ["--train", str(tmp_path / "a.tsv"), "--output", str(tmp_path / "b")]
    for words, code, said in (
        (["export", str(trained), "--to", "onnx", str(tmp_path / "a")], 1, "no export supports a Recurrent"),
        (
            ["train", "--from", str(trained), *more],
            2,
            "recurrent_encoder_decoder, but translation trains a vanilla_transformer",
        ),
    ):
        assert main(words) == code
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("cell", "attention"), [("lstm", "none"), ("lstm", "luong-general"), ("gru", "bahdanau")])
def test_counted_operations_are_those_of_the_real_model(recipe, cell, attention):
    """Torch counts every product of steps by hand, and none of its fused recurrence, which the encoder is."""
    recipe = recipe.with_options(attention=attention, cell=cell)
    model = task_for(recipe).build(recipe).eval()
    source, target = torch.randint(3, 99, (2, 7)), torch.randint(3, 99, (2, 5))
    encoded = model.get_encoder()(source)
    # The mask says nothing but that the decoder has to step by hand.
    mask = torch.tensor([[0, 1, 1, 1, 1]] * 2)
    with FlopCounterMode(display=False) as counter:
        model(encoder_outputs=encoded, decoder_input_ids=target, decoder_attention_mask=mask)
    recurrence = sum(w.numel() for name, w in model.model.encoder.rnn.named_parameters() if name.startswith("weight"))
    counted = counter.get_total_flops() + 2 * source.numel() * recurrence
    expected = training_flops(model.config, np.array([7, 7]), np.array([5, 5])) / 3
    # The vector v of additive attention is a product too small for Table 2's way to count.
    assert counted == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": 4}, "num_heads Transformers"),
        ({"preset": "table3-E"}, "'table3-E' tiny small base big"),
        ({"encoder_layers": 2, "decoder_layers": 3}, "2 3"),
        ({"architecture": "transformer"}, "attention recurrent"),
    ],
)
def test_fields_that_do_not_belong_together_are_refused(recipe, tmp_path, changes, named):
    with refused(SettingError, *named.split()):
        train(recipe.with_options(output=str(tmp_path / "model"), **changes))
    assert not list(tmp_path.glob("model/*.safetensors"))
