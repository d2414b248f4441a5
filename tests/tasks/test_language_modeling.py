"""A decoder-only model is trained, resumed, scored and averaged by the same commands as the others."""

import gzip
import json
import math

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, pipeline

from vanilla_transformer.cli import main
from vanilla_transformer.errors import MetricError, RecipeError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task, task_of_model
from vanilla_transformer.tasks.language_modeling import in_blocks
from vanilla_transformer.training.loop import train
from vanilla_transformer.translation.loading import load_own_tokenizer

TASK = get_task("language-modeling")


def test_a_run_learns_and_its_card_says_what_it_is(trained, lines, capsys):
    directory = trained["lines"]
    summary = json.loads((directory / "summary.json").read_text())
    found = {score["name"]: score["value"] for score in summary["scores"]["dev"]}
    assert list(found) == ["perplexity", "bits_per_character"] and 1 < found["perplexity"] < 6
    head = ModelCard.load(directory / "README.md").data
    assert head.pipeline_tag == "text-generation"
    assert {result.task_type for result in head.eval_results} == {"text-generation"}
    signatures = [result.metric_args["signature"] for result in head.eval_results]
    assert all("|items:20|" in one and "|context:16|" in one for one in signatures)
    assert "of at most 16 tokens, longer ones in blocks of as many" in (directory / "README.md").read_text()
    assert task_of_model(directory).name == TASK.name
    assert main(["evaluate", str(directory), "--data", *lines.data.dev[0].parts, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {score["name"]: score["value"] for score in result["scores"]} == pytest.approx(found)
    [text] = pipeline("text-generation", model=str(directory))("the dog sees", max_new_tokens=3, do_sample=False)
    assert text["generated_text"].startswith("the dog sees the")


def test_resumed_run_ends_with_identical_weights_and_averages(trained, lines, stopped, tmp_path):
    assert stopped(lines) == (trained["lines"] / "model.safetensors").read_bytes()
    assert main(["average", str(trained["lines"]), "--last", "2", "--output", str(tmp_path / "mean")]) == 0
    assert (tmp_path / "mean/model.safetensors").read_bytes() == (trained["lines"] / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("most", "length"), [(2, 2), (2, 9), (5, 5), (5, 6), (5, 9), (5, 10), (300, 7)])
def test_each_token_but_the_first_is_predicted_once(most, length):
    blocks = in_blocks(range(length), most)
    assert [token for block in blocks for token in block[1:]] == [*range(1, length)]
    assert all(2 <= len(block) <= most for block in blocks)
    assert all(block[0] == before[-1] for before, block in zip(blocks, blocks[1:], strict=False))


def test_a_long_line_loses_no_token_in_training(lines, tmp_path):
    words = "the cat likes the hen " * 30
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(f"{words}\nthe dog\n\n".encode()))
    train(
        lines.with_options(
            train=(str(tmp_path / "train.txt.gz"),),
            dev=(),
            vocab_size=264,
            max_steps=40,
            output=str(tmp_path / "model"),
        )
    )
    tokenizer = load_own_tokenizer(tmp_path / "model")
    tokens = sum(len(tokenizer(text)["input_ids"]) for text in (words, "the dog"))
    records = [json.loads(line) for line in (tmp_path / "model/metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "target_tokens" in record][-1]
    epochs = json.loads((tmp_path / "model/summary.json").read_text())["epochs"]
    # Of each text its end counts and its beginning does not.
    assert last["target_tokens"] == pytest.approx(epochs * tokens)
    log = (tmp_path / "model/train.log").read_text()
    assert "without 1 that are empty" in log and "too long" not in log


def test_scores_are_those_of_the_logits_of_each_block(trained, tmp_path, capsys):
    text = " ".join(["the dog sees the cat"] * 9)
    (tmp_path / "in.tsv").write_text(f"text\n{text}\nthe ö\n")
    words = ["--data", str(tmp_path / "in.tsv"), "--metrics", "perplexity", "bits_per_character", "bits_per_byte"]
    assert main(["evaluate", str(trained["lines"]), *words, "--json", "--batch-tokens", "20"]) == 0
    found = {score["name"]: score["value"] for score in json.loads(capsys.readouterr().out)["scores"]}
    model = AutoModelForCausalLM.from_pretrained(trained["lines"]).eval()
    tokenizer = VanillaTransformerTokenizer.from_pretrained(trained["lines"])
    nats, tokens = 0.0, 0
    for one in (text, "the ö"):
        ids = [*tokenizer(one)["input_ids"], tokenizer.eos_token_id]
        for start in range(0, len(ids) - 1, 15):
            block = torch.tensor([ids[start : start + 16]])
            with torch.no_grad():
                nats += float(model(input_ids=block, labels=block).loss) * (block.shape[1] - 1)
            tokens += block.shape[1] - 1
    characters = len(text) + 5
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert found["bits_per_character"] == pytest.approx(nats / math.log(2) / characters, rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / (characters + 1), rel=1e-4)


@pytest.mark.parametrize("kind", ["lines", "masked_lines"])
def test_a_file_of_scores_has_log_probabilities_and_numbers_of_tokens(trained, tmp_path, capsys, kind):
    (tmp_path / "in.txt").write_text("the dog sees the cat\n")
    words = ["--data", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"), "--precision", "float32"]
    assert main(["evaluate", str(trained[kind]), *words]) == 0
    capsys.readouterr()
    log_probability, tokens = (tmp_path / "out.txt").read_text().strip().split("\t")
    assert float(log_probability) < 0 < int(tokens)
    if kind == "lines":
        assert main(["predict", str(trained[kind]), str(tmp_path / "in.txt"), "--precision", "float32"]) == 0
        assert capsys.readouterr().out == (tmp_path / "out.txt").read_text()


def test_predict_gives_the_log_probability_of_each_line(trained, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("the dog sees the cat\n\ncat the the the sees\n")
    assert main(["predict", str(trained["lines"]), str(tmp_path / "in.txt"), "--json"]) == 0
    likely, empty, unlikely = map(json.loads, capsys.readouterr().out.splitlines())
    assert unlikely["log_probability"] < likely["log_probability"] - 5 < 0
    assert empty["log_probability"] is None and likely["tokens"] > 5


def test_a_batch_without_rows_has_nothing_to_learn():
    recipe = Recipe.of(task=TASK.name, preset="tiny", vocab_size=300)
    model = TASK.build(recipe)
    loss = model(**TASK.collate({"text": []}, None, model.config), num_items_in_batch=3, skip_logits=True).loss
    loss.backward()
    assert float(loss.detach()) == 0


@torch.no_grad()
def test_padding_changes_no_loss():
    recipe = Recipe.of(task=TASK.name, preset="tiny", vocab_size=300)
    model = TASK.build(recipe).eval()
    rows = [np.array([1, 7, 9, 8, 2]), np.array([1, 5, 2])]
    apart = [model(**TASK.collate({"text": [row]}, None, model.config), num_items_in_batch=1).loss for row in rows]
    together = model(**TASK.collate({"text": rows}, None, model.config), num_items_in_batch=1, skip_logits=True).loss
    assert float(together) == pytest.approx(float(sum(apart)), rel=1e-5)
    assert TASK.items(np.array([5, 3])).tolist() == [4, 2]


def test_counted_operations_are_those_of_the_real_model():
    recipe = Recipe.of(task=TASK.name, preset="tiny", vocab_size=300)
    with FlopCounterMode(display=False) as counter:
        TASK.build(recipe).eval()(input_ids=torch.randint(3, 99, (2, 7)), use_cache=False)
    expected = TASK.training_flops(TASK.config(recipe), np.array([7, 7])) / 3
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"metrics": ("accuracy",)}, "'accuracy'"),
        ({"encoder_layers": 2}, "encoder_layers language-modeling"),
        ({"num_beams": 1}, "num_beams language-modeling"),
        ({"labels": ("a", "b")}, "labels language-modeling"),
        ({"max_length": 1}, "max_length 2"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(lines, changes, named, tmp_path):
    with refused((RecipeError, MetricError), *named.split()):
        train(lines.with_options(output=str(tmp_path / "model"), **changes))


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece", "character"])
def test_a_continuation_keeps_its_leading_space(algorithm):
    texts = ["the cat sat\n on  the mat", " the dog"]
    size = 260 if algorithm == "character" else 268
    tokenizer = VanillaTransformerTokenizer.train(texts, size, algorithm=algorithm, begins=True, ends=False)
    for text in (*texts, "Öl\tund "):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces = [tokenizer.decode(ids[:cut]) + tokenizer.decode(ids[cut:]) for cut in range(len(ids) + 1)]
        assert all(piece == text or "�" in piece for piece in pieces) and pieces[0] == text
