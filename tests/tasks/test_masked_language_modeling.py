"""A masked language model is trained, resumed and scored by the same commands; classifiers take its encoder."""

import json

import numpy as np
import pytest
from huggingface_hub import ModelCard
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import pipeline

from vanilla_transformer.cli import main
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import RowRandom, get_task, task_of_model
from vanilla_transformer.tasks.masked_language_modeling import masked, tokens_masked
from vanilla_transformer.training.loop import train

TASK = get_task("masked-language-modeling")


def test_a_run_learns_and_its_card_says_what_it_is(trained, masked_lines, capsys, tmp_path):
    directory = trained["masked_lines"]
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    losses = [record["dev_loss"] for record in records if "dev_loss" in record]
    assert losses[-1] < 5  # All entries alike cost 5.6.
    head = ModelCard.load(directory / "README.md").data
    assert head.pipeline_tag == "fill-mask" and head.metrics == ["masked_perplexity"]
    assert task_of_model(directory).name == TASK.name
    found = json.loads((directory / "summary.json").read_text())["scores"]["dev"][0]
    words = ["evaluate", str(directory), "--data", *masked_lines.data.dev[0].parts, "--json", "--batch-tokens", "30"]
    assert main(words) == 0
    [again] = json.loads(capsys.readouterr().out)["scores"]
    assert again["value"] == pytest.approx(found["value"]) and "|masked-tokens:" in again["signature"]
    assert len(pipeline("fill-mask", model=str(directory))("the dog <mask> the cat")) == 5
    (tmp_path / "in.txt").write_text("the <mask>\n")
    assert main(["predict", str(directory), str(tmp_path / "in.txt")]) == 1
    assert 'give it to pipeline("fill-mask")' in capsys.readouterr().err


def test_counted_operations_are_those_of_the_real_loss():
    recipe = Recipe.of(task=TASK.name, preset="tiny", vocab_size=300)
    model, rows = TASK.build(recipe).eval(), [np.arange(3, 23), np.arange(3, 23)]
    model.set_attn_implementation("eager")
    batch = TASK.collate({"text": rows}, RowRandom(1, 0, np.arange(2)), model.config)
    with FlopCounterMode(display=False) as counter:
        model(**batch, skip_logits=True)
    expected = TASK.training_flops(model.config, np.array([20, 20])) / 3
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_a_stopped_run_goes_on_to_the_same_weights(trained, masked_lines, stopped):
    assert stopped(masked_lines) == (trained["masked_lines"] / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("length", "count"), [(2, 0), (3, 1), (5, 1), (12, 2), (22, 3), (102, 15), (1002, 150)])
def test_exactly_so_many_tokens_of_a_row_are_masked(length, count):
    assert tokens_masked(np.array([length], dtype=np.uint16)).tolist() == [count]
    ids = [1, *([9] * (length - 2)), 2]
    seen, labels = masked(ids, np.random.default_rng(0), 300)
    assert (labels != -100).sum() == count and labels[0] == labels[-1] == -100
    assert (seen[labels == -100] == np.array(ids)[labels == -100]).all() and set(labels) <= {9, -100}


def test_80_percent_of_masked_tokens_are_hidden_and_10_replaced():
    seen, labels = masked([1, *([9] * 100_000), 2], np.random.default_rng(0), 300)
    there = seen[labels != -100]
    others = there[(there != 299) & (there != 9)]
    assert (there == 299).mean() == pytest.approx(0.8, abs=0.01)
    assert len(others) / len(there) == pytest.approx(0.1, abs=0.01)
    assert others.min() >= 4 and others.max() <= 298


def test_masks_depend_on_row_and_epoch_but_not_on_the_batch():
    config = TASK.config(Recipe.of(task=TASK.name, preset="tiny", vocab_size=300))
    rows = [np.array([1, *range(10, 60), 2]), np.array([1, *range(60, 90), 2])]
    both = TASK.collate({"text": rows}, RowRandom(1, 0, np.array([4, 7])), config)
    alone = TASK.collate({"text": rows[1:]}, RowRandom(1, 0, np.array([7])), config)
    later = TASK.collate({"text": rows[1:]}, RowRandom(1, 1, np.array([7])), config)
    assert both["labels"][1, :32].tolist() == alone["labels"][0].tolist() != later["labels"][0].tolist()
    assert (both["labels"] != -100).sum(1).tolist() == TASK.items(np.array([52, 32])).tolist()


def test_a_long_text_loses_no_token(trained):
    from vanilla_transformer.translation.loading import load_own_tokenizer

    tokenizer, text = load_own_tokenizer(trained["masked_lines"]), "the dog sees the cat " * 20
    blocks = TASK.encoder(Recipe.of(max_length=9)).encode({"text": [text]}, tokenizer)["text"]
    inner = [token for block in blocks for token in block[1:-1]]
    assert inner == tokenizer(text, add_special_tokens=False)["input_ids"] and max(map(len, blocks)) == 9
    assert all((block[0], block[-1]) == (1, 2) for block in blocks)


def test_a_batch_without_rows_has_nothing_to_learn():
    model = TASK.build(Recipe.of(task=TASK.name, preset="tiny", vocab_size=300))
    loss = model(**TASK.collate({"text": []}, None, model.config), num_items_in_batch=3, skip_logits=True).loss
    assert float(loss.detach()) == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"decoder_layers": 2}, "decoder_layers masked-language-modeling"),
        ({"labels": ("a", "b")}, "labels masked-language-modeling"),
        ({"max_length": 2}, "max_length 3"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(masked_lines, changes, named, tmp_path):
    with refused(RecipeError, *named.split()):
        train(masked_lines.with_options(output=str(tmp_path / "model"), **changes))
