"""Texts with several labels each, or with a number, are learned from a table by the commands of those with one."""

import json
import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import ModelCard
from refusals import refused
from transformers import AutoModelForSequenceClassification, pipeline

from vanilla_transformer.cli import main
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.evaluation.metrics import score
from vanilla_transformer.extras.labelling.label_metrics import LABEL_SET_METRICS, NUMBER_METRICS
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for, task_of_model
from vanilla_transformer.training.loop import train

SEVERAL, NUMBER = "multi_label_classification", "regression"


@pytest.fixture(scope="module")
def several(labelled, tmp_path_factory) -> Recipe:
    """Words of three kinds, in texts with all, some or none of them: a table, and lists in JSON."""
    directory, draw = tmp_path_factory.mktemp("several"), random.Random(0)

    def row():
        labels = [label for label in ("animal", "plant", "stone") if draw.random() < 0.5]
        words = {"animal": ["dog", "cat"], "plant": ["oak", "elm"], "stone": ["jade", "onyx"]}
        return [draw.choice(words[label]) for label in labels] + ["the", "is"], labels

    train_rows, dev_rows = [row() for _ in range(200)], [row() for _ in range(20)]
    lines = [f"{' '.join(words)}\t{', '.join(labels)}\n" for words, labels in train_rows]
    (directory / "train.tsv").write_text("text\tlabels\n" + "".join(lines))
    dev = [json.dumps({"text": " ".join(words), "labels": labels}) + "\n" for words, labels in dev_rows]
    (directory / "dev.jsonl").write_text("".join(dev))
    corpora = {"train": (str(directory / "train.tsv"),), "dev": (str(directory / "dev.jsonl"),)}
    return labelled.with_options(problem_type=SEVERAL, examples=("the cat",), **corpora, max_steps=100, vocab_size=266)


@pytest.fixture(scope="module")
def numbered(labelled, tmp_path_factory) -> Recipe:
    """Texts whose number is half of the number of dogs in them, minus one."""
    directory, draw = tmp_path_factory.mktemp("numbered"), random.Random(0)
    for name, size in (("train", 160), ("dev", 20)):
        rows = [[draw.choice(["dog", "cat"]) for _ in range(4)] for _ in range(size)]
        lines = [f"{' '.join(words)},{words.count('dog') / 2 - 1}\n" for words in rows]
        (directory / f"{name}.csv").write_text("text,label\n" + "".join(lines))
    corpora = {name: (str(directory / f"{name}.csv"),) for name in ("train", "dev")}
    return labelled.with_options(problem_type=NUMBER, examples=("dog dog",), **corpora, max_steps=100, vocab_size=266)


@pytest.fixture(scope="module")
def models(several, numbered, tmp_path_factory):
    directory = tmp_path_factory.mktemp("kinds")
    recipes = {SEVERAL: several, NUMBER: numbered}
    return {kind: train(recipe.with_options(output=str(directory / kind))) for kind, recipe in recipes.items()}


@pytest.mark.parametrize(("kind", "least"), [(SEVERAL, {"micro_f1": 90, "macro_f1": 90}), (NUMBER, {"pearson": 0.9})])
def test_a_run_learns_and_its_card_and_the_command_say_the_same(models, several, numbered, kind, least, capsys):
    recipe, directory = (several if kind == SEVERAL else numbered), models[kind]
    summary = json.loads((directory / "summary.json").read_text())
    found = {one["name"]: one["value"] for one in summary["scores"]["dev"]}
    assert list(found) == list(task_for(recipe).metrics) and all(found[name] > value for name, value in least.items())
    card = ModelCard.load(directory / "README.md")
    assert card.data.pipeline_tag == "text-classification" and set(card.data.metrics) == {*found}
    unit = "squared error per text" if kind == NUMBER else "nats per text"
    assert unit in card.text
    config = json.loads((directory / "config.json").read_text())
    assert config["problem_type"] == kind == load_recipe(directory / "recipe.yaml")["problem_type"]
    assert main(["evaluate", str(directory), "--data", *recipe.data.dev[0].parts, "--json"]) == 0
    again = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["scores"]}
    assert again == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "label", "said"),
    [
        (NUMBER, "1e308", "'1e308' is not a number"),
        (NUMBER, "nan", "'nan' is not a number"),
        (NUMBER, "", "'' is not a number"),
        (SEVERAL, "animal, plnt", "'plnt'.*did you mean 'plant'"),
    ],
)
def test_a_wrong_label_is_refused_with_its_line(models, tmp_path, capsys, kind, label, said):
    (tmp_path / "x.tsv").write_text(f"text\tlabel\nthe cat\t{'0' if kind == NUMBER else 'animal'}\nthe cat\t{label}\n")
    assert main(["evaluate", str(models[kind]), "--data", str(tmp_path / "x.tsv"), "--json"]) == 1
    assert re.search(f"x.tsv, line 3: .*{said}", capsys.readouterr().err)


@pytest.mark.parametrize("kind", [SEVERAL, NUMBER])
def test_a_stopped_run_goes_on_to_the_same_weights(models, several, numbered, stopped, kind):
    weights = (models[kind] / "model.safetensors").read_bytes()
    assert stopped(several if kind == SEVERAL else numbered) == weights


@torch.no_grad()
def test_predictions_are_those_of_the_model_and_of_the_librarys_pipeline(models, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("the cat is jade\n\nthe is\n")
    for kind in (SEVERAL, NUMBER):
        assert main(["average", str(models[kind]), "--last", "1", "--output", str(tmp_path / kind)]) == 0
        assert type(task_of_model(tmp_path / kind)) is type(task_of_model(models[kind]))
        capsys.readouterr()
        assert (
            main(["predict", str(tmp_path / kind), str(tmp_path / "in.txt"), "--precision", "float32", "--json"]) == 0
        )
        first, empty, last = map(json.loads, capsys.readouterr().out.splitlines())
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / kind).eval()
        tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / kind)
        logits = model(**tokenizer("the cat is jade", return_tensors="pt")).logits[0]
        if kind == SEVERAL:
            assert first["labels"] == ["animal", "stone"] and last["labels"] == [] == empty["labels"]
            assert list(first["scores"].values()) == pytest.approx(logits.sigmoid().tolist(), abs=1e-5)
            [found] = pipeline("text-classification", model=str(models[kind]), top_k=None)(["the cat is jade"])
            assert {one["label"] for one in found if one["score"] > 0.5} == {"animal", "stone"}
        else:
            assert first["score"] == pytest.approx(float(logits[0]), abs=1e-5) and empty["score"] is None
    assert main(["predict", str(models[SEVERAL]), str(tmp_path / "in.txt")]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("animal,stone\t0.")


def test_numbers_are_kept_to_the_last_bit_and_the_loss_is_the_librarys():
    recipe = Recipe.of(task="text-classification", problem_type=NUMBER, preset="tiny", vocab_size=300)
    task = task_for(recipe)
    tokenizer = VanillaTransformerTokenizer.train(["a b"], 261, begins=True)
    texts = ["-0.1", "3e8", "0", " 7 "]
    rows = task.encoder(recipe).encode({"text": ["a"] * 4, "text_pair": [""] * 4, "label": texts}, tokenizer)
    batch = task.collate(
        {name: [np.array(row, np.uint32) for row in rows[name]] for name in rows}, None, task.config(recipe)
    )
    assert batch["labels"].tolist() == np.array([-0.1, 3e8, 0, 7], np.float32).tolist()


@pytest.mark.parametrize("kind", [SEVERAL, NUMBER])
def test_a_batch_without_rows_has_nothing_to_learn(kind):
    recipe = Recipe.of(task="text-classification", problem_type=kind, preset="tiny", vocab_size=300)
    task = task_for(recipe)
    model = task.build(recipe)
    loss = model(**task.collate({"text": [], "label": []}, None, model.config), num_items_in_batch=3).loss
    loss.backward()
    assert float(loss.detach()) == 0 and all(one.grad is None or not one.grad.any() for one in model.parameters())


def test_label_lists_are_read_from_parquet_and_commas_refused(several, tmp_path):
    for labels in (["animal", "stone"], ["a,b"]):
        table = pa.table({"text": ["the cat", "the oak"], "labels": [labels, []]})
        pq.write_table(table, tmp_path / f"{len(labels)}.parquet")
    changes = {"max_steps": 1, "vocab_size": None, "output": str(tmp_path / "model"), "dev": ()}
    with refused(CorpusError, "'labels'", "'a,b'", "comma"):
        train(several.with_options(train=(str(tmp_path / "1.parquet"),), **changes))
    train(several.with_options(train=(str(tmp_path / "2.parquet"),), **changes))
    assert load_recipe(tmp_path / "model" / "recipe.yaml")["labels"] == ("animal", "stone")


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (SEVERAL, {"metrics": ("accuracy",)}, "'accuracy' 'subset_accuracy'"),
        (SEVERAL, {"label_smoothing": 0.1}, "label_smoothing multi_label_classification"),
        (NUMBER, {"labels": ("a", "b")}, "labels text-classification"),
        (NUMBER, {"dev": ("other.tsv",)}, "other.tsv line 3 'many'"),
        (SEVERAL, {"dev": ("other.tsv",)}, "other.tsv line 2 '1.5'"),
        (NUMBER, {"task": "token-classification"}, "problem_type token-classification"),
        (NUMBER, {"problem_type": "numbers"}, "problem_type"),
    ],
)
def test_labels_of_another_kind_are_refused(several, numbered, kind, changes, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.tsv").write_text("text\tlabel\nx\t1.5\ny\tmany\n")
    with refused((RecipeError, CorpusError, ValueError), *named.split()):
        recipe = several if kind == SEVERAL else numbered
        train(recipe.with_options(**changes, output=str(tmp_path / "model")))


def test_metrics_of_sets_and_numbers_are_the_libraries():
    from scipy.stats import spearmanr
    from sklearn.metrics import f1_score

    found, gold = ["a,b", "", "b", "c"], [["a"], [""], ["b,a"], ["c"]]
    values = {one.name: one.value for one in score(LABEL_SET_METRICS, found, gold, LABEL_SET_METRICS)}
    rows = [[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1]]
    for average in ("micro", "macro"):
        assert values[f"{average}_f1"] == pytest.approx(100 * f1_score(rows[1], rows[0], average=average))
    assert values["subset_accuracy"] == 50
    numbers, right = ["1.0", "2.5", "2.0", ""], [["1"], ["2"], ["4"], ["9"]]
    values = {one.name: one.value for one in score(NUMBER_METRICS, numbers, right, NUMBER_METRICS)}
    assert values["mean_squared_error"] == pytest.approx((0 + 0.25 + 4) / 3)
    assert values["spearman"] == pytest.approx(spearmanr([1, 2.5, 2], [1, 2, 4])[0])
    [same] = score(["pearson"], ["1.0", "1.0"], [["1"], ["2"]], NUMBER_METRICS)
    assert same.value == 0 and "sides:constant" in same.signature
