"""Classifiers of texts and of words are trained, resumed, scored and used by the same commands as translation."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification, pipeline

from vanilla_transformer.cli import main
from vanilla_transformer.errors import CorpusError, MetricError, RecipeError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.defaults import MODEL_FIELDS
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import evaluate, get_task, task_of_model
from vanilla_transformer.training.loop import train

KINDS = ("labelled", "tagged")


def recipe_of(kind, request) -> Recipe:
    return request.getfixturevalue(kind)


@pytest.mark.parametrize(
    ("kind", "tag", "scores"),
    [
        ("labelled", "text-classification", ["accuracy", "macro_f1"]),
        ("tagged", "token-classification", ["seqeval", "token_accuracy"]),
    ],
)
def test_a_run_learns_and_its_card_says_what_it_is(trained, request, kind, tag, scores, capsys):
    directory = trained[kind]
    summary = json.loads((directory / "summary.json").read_text())
    found = {score["name"]: score["value"] for score in summary["scores"]["dev"]}
    assert list(found) == scores and min(found.values()) > 90
    head = ModelCard.load(directory / "README.md").data
    assert head.pipeline_tag == tag and head.metrics == sorted(scores)
    assert {result.task_type for result in head.eval_results} == {tag}
    signatures = [result.metric_args["signature"] for result in head.eval_results]
    assert all("count:" in one and "|items:20|" in one for one in signatures)
    text = (directory / "README.md").read_text()
    assert f"for text like that in {'train.tsv' if kind == 'labelled' else 'train.conll'}" in text
    assert "pairs" not in text.partition("## Recipe")[0] and (directory / "learning_curves.png").is_file()
    assert task_of_model(directory).name == tag
    assert main(["evaluate", str(directory), "--data", *recipe_of(kind, request).data.dev[0].parts, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    again = {score["name"]: score["value"] for score in result["scores"]}
    assert again == pytest.approx(found)


def test_labels_have_a_fixed_order_in_configuration_and_pipeline(trained):
    config = json.loads((trained["labelled"] / "config.json").read_text())
    assert config["id2label"] == {"0": "animal", "1": "plant"} and config["label2id"] == {"animal": 0, "plant": 1}
    assert config["problem_type"] == "single_label_classification"
    assert load_recipe(trained["labelled"] / "recipe.yaml")["labels"] == ("animal", "plant")
    [found] = pipeline("text-classification", model=str(trained["labelled"]))("the fig is the oak")
    assert found["label"] == "plant"
    tagger = pipeline("token-classification", model=str(trained["tagged"]))
    first_pieces = [one for one in tagger("the cow sees the hen") if one["word"].startswith("Ġ")]
    assert [(one["entity"], one["end"] > 8) for one in first_pieces] == [("B-ANI", False), ("B-ANI", True)]


def test_first_token_pooling_is_inherited_by_further_training(request, tmp_path):
    recipe = recipe_of("labelled", request).with_options(max_steps=1)
    first = train(recipe.with_options(classifier_pooling="first", output=str(tmp_path / "first")))
    sizes = {name: Recipe()[name] for name in ("preset", *MODEL_FIELDS)}
    further = recipe.with_options(**sizes, from_model=str(first), output=str(tmp_path / "further"))
    for directory, pooling in (
        (first, "first"),
        (train(further), "first"),
        (train(further.with_options(classifier_pooling="mean", output=str(tmp_path / "mean"))), "mean"),
    ):
        assert json.loads((directory / "config.json").read_text()).get("classifier_pooling", "mean") == pooling


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        *((task, "labels") for task in ("translation", "masked-language-modeling", "language-modeling")),
        *((task, "classifier_pooling") for task in ("translation", "token-classification", "language-modeling")),
    ],
)
def test_settings_of_classifiers_are_refused_for_other_tasks(task, setting, tmp_path):
    value = {"labels": ("a", "b"), "classifier_pooling": "first"}[setting]
    with refused(RecipeError, setting, task):
        train(Recipe.of(task=task, train="text.txt", output=str(tmp_path / "model"), **{setting: value}))


def test_a_classifier_starts_from_its_encoder(trained, labelled, tmp_path):
    left = dict.fromkeys(("vocab_size", "preset", "d_model", "d_ff", "num_heads", "encoder_layers", "warmup_steps"))
    start = {**left, "from_model": str(trained["masked_lines"]), "output": str(tmp_path / "model"), "max_steps": 2}
    directory = train(labelled.with_options(**start))
    assert "Starts from" in (directory / "train.log").read_text()
    assert task_of_model(directory).name == "text-classification"


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_same_weights(trained, request, kind, stopped):
    assert stopped(recipe_of(kind, request)) == (trained[kind] / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_of_a_run_are_averaged_by_the_command(trained, kind, tmp_path):
    assert main(["average", str(trained[kind]), "--last", "2", "--output", str(tmp_path / "mean")]) == 0
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "mean", trained[kind]))
    assert ours["id2label"] == theirs["id2label"] and ours["architectures"] == theirs["architectures"]
    assert (tmp_path / "mean/model.safetensors").read_bytes() == (trained[kind] / "model.safetensors").read_bytes()


def test_numbers_are_sorted_as_numbers_and_two_texts_stand_together(labelled, tmp_path):
    rows = [(str(number % 12), f"first {number}", f"second {number}") for number in range(60)]
    (tmp_path / "train.csv").write_text("label,text,text_pair\n" + "".join(f"{','.join(row)}\n" for row in rows))
    recipe = labelled.with_options(
        train=(str(tmp_path / "train.csv"),), dev=(), max_steps=2, output=str(tmp_path / "model")
    )
    train(recipe)
    assert load_recipe(tmp_path / "model" / "recipe.yaml")["labels"] == tuple(map(str, range(12)))
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "model")
    predictor = get_task("text-classification").predictor(model, tokenizer)
    [alone, both] = predictor.predict([("first 1", ""), ("first 1", "second 1")], lambda count: None)
    inputs = tokenizer("first 1", "second 1", return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**inputs).logits.softmax(-1)[0]
    assert both.values["scores"]["3"] == pytest.approx(float(expected[3]), abs=1e-5)
    assert alone.values["scores"] != both.values["scores"]


def test_tags_stand_on_first_pieces_alone():
    task = get_task("token-classification")
    tokenizer = VanillaTransformerTokenizer.train(["unbelievable words"], 262, begins=True)
    encoder = task.encoder(Recipe.of(task=task.name, labels=("A", "B")))
    rows = encoder.encode({"words": ["unbelievable\twords", "a"], "tags": ["B\tA", "B"]}, tokenizer)
    lengths = [np.array(list(map(len, rows[name]))) for name in task.columns]
    assert task.items(*lengths).tolist() == [2, 1]
    batch = task.collate({name: [np.array(row) for row in rows[name]] for name in rows}, None, task.config(Recipe()))
    labelled = batch["labels"] != -100
    assert labelled.sum(1).tolist() == [2, 1] and batch["labels"][labelled].tolist() == [1, 0, 1]
    expected = tokenizer("unbelievable words")["input_ids"]
    assert batch["input_ids"][0].tolist() == expected
    begins = [expected.index(tokenizer(word, add_special_tokens=False)["input_ids"][1]) for word in ("words",)]
    assert labelled[0].nonzero().flatten().tolist()[0] == 1 and begins[0] > 2


@pytest.mark.parametrize("name", ["text-classification", "token-classification"])
def test_a_batch_without_rows_has_nothing_to_learn(name):
    task = get_task(name)
    config = task.config(Recipe.of(task=name, preset="tiny", vocab_size=300))
    model = task.build(Recipe.of(task=name, preset="tiny", vocab_size=300))
    batch = task.collate({column: [] for column in task.columns}, None, config)
    assert float(model(**batch, num_items_in_batch=3, skip_logits=True).loss.detach()) == 0


@pytest.mark.parametrize("name", ["text-classification", "token-classification"])
def test_counted_operations_are_those_of_the_real_model(name):
    recipe = Recipe.of(task=name, preset="tiny", vocab_size=300, labels=("A", "B", "C"))
    task = get_task(name)
    model = task.build(recipe).eval()
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(3, 99, (2, 7)))
    expected = task.training_flops(task.config(recipe), np.array([1, 1]), np.array([7, 7])) / 3
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("labelled", {"metrics": ("sacrebleu",)}, "'sacrebleu' accuracy macro_f1"),
        ("tagged", {"metrics": ("seqevl",)}, "'seqevl' 'seqeval'"),
        ("labelled", {"decoder_layers": 2}, "decoder_layers text-classification"),
        ("labelled", {"num_beams": 1}, "num_beams text-classification"),
        ("tagged", {"architecture": "recurrent"}, "architecture token-classification"),
        ("labelled", {"source_column": "text"}, "source_column text_column"),
        ("labelled", {"task": "text-clasification"}, "'text-classification'"),
        ("labelled", {"labels": ("animal",)}, "labels animal"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(request, kind, changes, named, tmp_path):
    with refused((RecipeError, MetricError, CorpusError), *named.split()):
        train(recipe_of(kind, request).with_options(output=str(tmp_path / "model"), **changes))


@pytest.mark.parametrize("field", ["dev", "test"])
def test_a_label_that_was_never_seen_is_named_with_its_place(labelled, tagged, tmp_path, field):
    (tmp_path / "b.tsv").write_text("text\tlabel\nx\tanimal\ny\tplants\n")
    (tmp_path / "b.conll").write_text("the\tO\ncat\tB-ANI\n\nthe\tO\nrock\tB-MIN\n")
    for recipe, file, named in (
        (labelled, "b.tsv", "line 3 'plants' train 'plant'"),
        (tagged, "b.conll", "line 4 'B-MIN' train"),
    ):
        changes = {field: (str(tmp_path / file),), "output": str(tmp_path / file / "model")}
        with refused((CorpusError, OSError), file, *named.split()):
            train(recipe.with_options(**{**changes, "output": str(tmp_path / f"{file}-model")}))


@pytest.mark.parametrize(
    ("kind", "file", "text", "said"),
    [
        (
            "labelled",
            "x.tsv",
            "label\ttext\nplant\tthe oak\nplan\tthe elm\n",
            "line 3.*'plan'.*'plant'.* animal, plant",
        ),
        ("labelled", "x.csv", 'label,text\nplant,"the\n oak"\n,the elm\n', "line 4.* label ''"),
        ("tagged", "x.conll", "the\tO\noak\tB-PLA\n\n\nthe\tO\ndog\tB-DOG\n", "line 5.* label 'B-DOG'"),
    ],
)
def test_a_label_that_the_model_has_not_is_not_scored(trained, tmp_path, capsys, kind, file, text, said):
    (tmp_path / file).write_text(text)
    assert main(["evaluate", str(trained[kind]), "--data", str(tmp_path / file)]) == 1
    assert re.search(f"{file}, {said}", capsys.readouterr().err)


@pytest.fixture(scope="module")
def by_number(labelled, tmp_path_factory):
    """A classifier of a table without a header, whose columns have numbers."""
    directory = tmp_path_factory.mktemp("by-number")
    for name in ("train", "dev"):
        rows = (line.split("\t") for line in Path(labelled[name][0].parts[0]).read_text().splitlines()[1:])
        (directory / f"{name}.tsv").write_text("".join(f"0\t{text}\t{label}\n" for label, text in rows))
    corpora = {name: (str(directory / f"{name}.tsv"),) for name in ("train", "dev")}
    recipe = labelled.with_options(**corpora, text_column="2", label_column="3", max_steps=60)
    return train(recipe.with_options(output=str(directory / "model")))


def test_columns_are_read_by_recipe_number_or_header_name(by_number, tmp_path, capsys):
    (tmp_path / "plain.tsv").write_text("7\tthe oak is the elm\tplant\n")
    (tmp_path / "named.tsv").write_text("label\ttext\nplant\tthe oak is the elm\n")
    for name in ("plain", "named"):
        table = str(tmp_path / f"{name}.tsv")
        assert main(["evaluate", str(by_number), "--data", table, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["scores"][0]["value"] == 100
        assert evaluate(by_number, table).scores[0].value == 100
        assert main(["predict", str(by_number), table]) == 0
        assert capsys.readouterr().out.startswith("plant\t")


def test_a_classifier_reports_no_perplexity(by_number):
    assert "perplexity" not in (by_number / "train.log").read_text() + (by_number / "metrics.jsonl").read_text()


def test_a_tokenizer_of_translation_is_refused_for_a_classifier(labelled, tmp_path):
    VanillaTransformerTokenizer.train(["a b c"], 262).save_pretrained(tmp_path / "tokenizer")
    recipe = labelled.with_options(
        tokenizer=str(tmp_path / "tokenizer"), vocab_size=None, output=str(tmp_path / "model")
    )
    with refused(RecipeError, "start", "end"):
        train(recipe)
