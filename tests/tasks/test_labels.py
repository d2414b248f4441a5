"""Labels of texts and of words: found in order, named where they are wrong, predicted line by line."""

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from faults import at_call
from refusals import refused
from transformers import AutoModelForSequenceClassification, pipeline

from vanilla_transformer.cli import main
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import evaluate, get_task
from vanilla_transformer.tasks.sizes import MODEL_FIELDS
from vanilla_transformer.tasks.text_classification import TextClassifier
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.training.run import train

LINES = ["the dog sees the cow", "", "the oak is the elm", "  ", "the fig likes the fir " * 3]


def predict(*words):
    return main(["predict", *map(str, words)])


def test_labels_have_a_fixed_order_in_configuration_and_pipeline(trained):
    config = json.loads((trained("labelled") / "config.json").read_text())
    assert config["id2label"] == {"0": "animal", "1": "plant"} and config["label2id"] == {"animal": 0, "plant": 1}
    assert config["problem_type"] == "single_label_classification"
    assert load_recipe(trained("labelled") / "recipe.yaml")["labels"] == ("animal", "plant")
    tagger = pipeline("token-classification", model=str(trained("tagged")))
    first_pieces = [one for one in tagger("the cow sees the hen") if one["word"].startswith("Ġ")]
    assert [(one["entity"], one["end"] > 8) for one in first_pieces] == [("B-ANI", False), ("B-ANI", True)]


def test_pooling_and_encoder_are_inherited_by_further_training(trained, labelled, tmp_path):
    recipe = labelled.with_options(max_steps=1)
    learned = {"classifier_pooling": "first", "positional_encoding": "learned"}
    first = train(recipe.with_options(**learned, output=str(tmp_path / "first")))
    assert pipeline("text-classification", model=str(first))("the cow " * 2000, truncation=True)
    sizes = {name: Recipe()[name] for name in ("preset", *MODEL_FIELDS)}
    further = recipe.with_options(**sizes, from_model=str(first), output=str(tmp_path / "further"))
    masked = further.with_options(from_model=str(trained("masked")), output=str(tmp_path / "masked"))
    for directory, pooling in ((first, "first"), (train(further), "first"), (train(masked), "mean")):
        assert json.loads((directory / "config.json").read_text()).get("classifier_pooling", "mean") == pooling
    assert "Starts from" in (tmp_path / "masked" / "train.log").read_text()
    first.directory.rename(tmp_path / "elsewhere")
    assert main(["average", str(tmp_path / "further"), "--output", str(tmp_path / "mean")]) == 0
    assert (tmp_path / "mean" / "config.json").read_bytes() == (tmp_path / "further" / "config.json").read_bytes()


def test_numbers_are_sorted_as_numbers_and_two_texts_stand_together(labelled, tmp_path):
    rows = [(str(number % 12), f"first {number}", f"second {number}") for number in range(60)]
    (tmp_path / "train.csv").write_text("label,text,text_pair\n" + "".join(f"{','.join(row)}\n" for row in rows))
    changes = {"train": (str(tmp_path / "train.csv"),), "dev": (), "max_steps": 2}
    model = train(labelled.with_options(**changes, output=str(tmp_path / "model"))).directory
    assert load_recipe(model / "recipe.yaml")["labels"] == tuple(map(str, range(12)))
    loaded = AutoModelForSequenceClassification.from_pretrained(model).eval()
    tokenizer = VanillaTransformerTokenizer.from_pretrained(model)
    predictor = get_task("text-classification").predictor(loaded, tokenizer)
    [alone, both] = predictor.predict([("first 1", ""), ("first 1", "second 1")], lambda count: None)
    with torch.no_grad():
        expected = loaded(**tokenizer("first 1", "second 1", return_tensors="pt")).logits.softmax(-1)[0]
    assert both.values["scores"]["3"] == pytest.approx(float(expected[3]), abs=1e-5)
    assert alone.values["scores"] != both.values["scores"]


def test_tags_stand_on_first_pieces_alone():
    task = get_task("token-classification")
    tokenizer = train_tokenizer(["unbelievable words"], 262, begins=True)
    encoder = task.encoder(Recipe.of(task=task.name, labels=("A", "B")))
    rows = encoder.encode({"words": ["unbelievable\twords", "a"], "tags": ["B\tA", "B"]}, tokenizer)
    batch = task.collate({name: [np.array(row) for row in rows[name]] for name in rows}, None, task.config(Recipe()))
    tagged = batch["labels"] != -100
    assert tagged.sum(1).tolist() == [2, 1] and batch["labels"][tagged].tolist() == [1, 0, 1]
    expected = tokenizer("unbelievable words")["input_ids"]
    second = expected.index(tokenizer("words", add_special_tokens=False)["input_ids"][1])
    assert batch["input_ids"][0].tolist() == expected
    assert second > 2 and tagged[0].nonzero().flatten().tolist()[0] == 1


@pytest.mark.parametrize(
    ("kind", "file", "text", "named"),
    [
        ("labelled", "b.tsv", "text\tlabel\nx\tanimal\ny\tplants\n", "line 3 'plants' 'plant'"),
        ("tagged", "b.conll", "the\tO\ncat\tB-ANI\n\nthe\tO\nrock\tB-MIN\n", "line 4 'B-MIN'"),
    ],
)
def test_a_label_that_was_never_seen_is_named_with_its_place(recipes, tmp_path, kind, file, text, named):
    (tmp_path / file).write_text(text)
    changes = {"test": (str(tmp_path / file),), "output": str(tmp_path / "model")}
    with refused(CorpusError, file, *named.split()):
        train(recipes[kind].with_options(**changes))


@pytest.mark.parametrize(
    ("kind", "file", "text", "place"),
    [
        ("labelled", "x.tsv", "label\ttext\nplant\tthe oak\nplan\tthe elm\n", "line 3.*'plan'.*'plant'"),
        ("labelled", "x.csv", 'label,text\nplant,"the\n oak"\n,the elm\n', "line 4.* label ''"),
        ("tagged", "x.conll", "the\tO\noak\tB-PLA\n\n\nthe\tO\ndog\tB-DOG\n", "line 5.* label 'B-DOG'"),
    ],
)
def test_a_label_that_the_model_has_not_is_not_scored(trained, tmp_path, capsys, kind, file, text, place):
    (tmp_path / file).write_text(text)
    assert main(["evaluate", str(trained(kind)), "--data", str(tmp_path / file)]) == 1
    assert re.search(f"{file}, {place}", capsys.readouterr().err)


def test_a_table_that_names_no_columns_is_read_by_those_of_the_recipe(labelled, tmp_path, capsys):
    for name in ("train", "dev"):
        rows = (line.split("\t") for line in Path(labelled[name][0].parts[0]).read_text().splitlines()[1:])
        (tmp_path / f"{name}.tsv").write_text("".join(f"0\t{text}\t{label}\n" for label, text in rows))
    corpora = {name: (str(tmp_path / f"{name}.tsv"),) for name in ("train", "dev")}
    recipe = labelled.with_options(**corpora, text_column="2", label_column="3", output=str(tmp_path / "model"))
    model = train(recipe).directory
    (tmp_path / "plain.tsv").write_text("7\tthe oak is the elm\tplant\n")
    (tmp_path / "named.csv").write_text("label,text\nplant,the oak is the elm\n")
    assert evaluate(model, str(tmp_path / "plain.tsv")).scores["accuracy"].value == 100
    capsys.readouterr()
    assert predict(model, tmp_path / "plain.tsv") == 0
    assert capsys.readouterr().out.startswith("plant\t")
    with refused(CorpusError, "named.csv", "'2'", "'label'", "'text'"):
        evaluate(model, str(tmp_path / "named.csv"))
    assert predict(model, tmp_path / "named.csv") == 1
    assert predict(model, tmp_path / "named.csv", "--text-column", "text") == 0
    assert "perplexity" not in (model / "train.log").read_text()


def test_labels_and_probabilities_are_ordered_and_the_pipelines(trained, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    words = trained("labelled"), tmp_path / "in.txt", "--precision", "float32"
    assert predict(*words) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line.partition("\t")[0] for line in lines] == ["animal", "", "plant", "", "plant", ""]
    assert predict(*words, "--json", "--output", tmp_path / "out.gz") == 0
    found = [json.loads(line) for line in gzip.decompress((tmp_path / "out.gz").read_bytes()).splitlines()]
    expected = pipeline("text-classification", model=str(trained("labelled")), top_k=None)
    for line, values in zip(LINES, found, strict=True):
        if not line.strip():
            assert values == {"label": None}
            continue
        scores = {one["label"]: one["score"] for one in expected(line)[0]}
        assert values["scores"] == pytest.approx(scores, abs=1e-5)
        assert values["score"] == max(values["scores"].values()) == values["scores"][values["label"]]


def test_tables_and_columns_of_words_are_predicted_row_by_row(trained, tmp_path, capsys):
    (tmp_path / "in.csv").write_text('label,text\nx,"the dog, it\nis the hen"\ny,the fig sees the fir\n')
    assert predict(trained("labelled"), tmp_path / "in.csv") == 0
    assert [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["animal", "plant"]
    (tmp_path / "in.tsv").write_text("1\tthe oak is the elm\n")
    assert predict(trained("labelled"), tmp_path / "in.tsv") == 1
    assert predict(trained("labelled"), tmp_path / "in.tsv", "--text-column", "2") == 0
    assert capsys.readouterr().out.startswith("plant\t")
    (tmp_path / "in.txt").write_bytes(b"the  dog sees the hen\n\nthe oak\n")
    assert predict(trained("tagged"), tmp_path / "in.txt") == 0
    assert capsys.readouterr().out == "O B-ANI O O B-ANI\n\nO B-PLA\n"
    assert predict(trained("labelled"), tmp_path / "in.txt", "--text-column", "2") == 2
    (tmp_path / "in.conll").write_text("1\tthe\n2\tdog\n\n1\tthe\n2\toak\n")
    assert predict(trained("tagged"), tmp_path / "in.conll", "--text-column", "2", "--json") == 0
    [first, second] = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["words"] == ["the", "dog"] and first["tags"] == ["O", "B-ANI"] and second["tags"] == ["O", "B-PLA"]
    assert len(first["scores"]) == 2 and all(0.5 < score <= 1 for score in first["scores"])


def test_a_killed_prediction_goes_on_to_the_same_file(trained, tmp_path, small_windows):
    (tmp_path / "in.txt").write_text("".join(f"{LINES[number % 5]} {number}\n" for number in range(40)))
    assert predict(trained("labelled"), tmp_path / "in.txt", "--output", tmp_path / "once") == 0
    words = [trained("labelled"), tmp_path / "in.txt", "--output", tmp_path / "twice", "--resume"]
    with at_call(4, TextClassifier, "predict"):
        assert predict(*words) == 130
    assert (tmp_path / "twice").read_text().count("\n") == 9
    assert predict(*words) == 0
    assert (tmp_path / "twice").read_bytes() == (tmp_path / "once").read_bytes()


def test_predict_cuts_and_names_texts_that_are_too_long(trained, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("the dog\n" + "the dog sees the cow " * 300 + "\n")
    assert predict(trained("labelled"), tmp_path / "in.txt") == 0
    assert "line 2" in capsys.readouterr().err
    assert predict(trained("tagged"), tmp_path / "in.txt") == 0
    out, err = capsys.readouterr()
    tags = out.splitlines()[1].split()
    assert len(tags) == 1500 and tags[:2] == ["O", "B-ANI"] and set(tags[1024:]) == {"_"}
    assert "line 2" in err


def test_a_model_of_several_labels_is_refused(trained, tmp_path, capsys):
    shutil.copytree(trained("labelled"), tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"problem_type": "multi_label_classification"}))
    (tmp_path / "in.txt").write_text("a\n")
    assert predict(tmp_path / "model", tmp_path / "in.txt") == 1
    assert "multi_label_classification" in capsys.readouterr().err
