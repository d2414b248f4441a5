"""`predict`: lines and tables in, labels and tags out, in order and resumed."""

import gzip
import json
import shutil
import subprocess
import sys
import threading

import pytest
from faults import at_call
from transformers import pipeline

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.tasks.text_classification import TextClassifier

LINES = ["the dog sees the cow", "", "the oak is the elm", "  ", "the fig likes the fir " * 3]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "in.txt"


def predict(*words):
    return main(["predict", *map(str, words)])


def test_labels_and_probabilities_are_ordered_and_the_pipelines(trained, text, tmp_path, capsys):
    assert predict(trained["labelled"], text, "--precision", "float32") == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line.partition("\t")[0] for line in lines] == ["animal", "", "plant", "", "plant", ""]
    assert predict(trained["labelled"], text, "--json", "--output", tmp_path / "out.gz", "--precision", "float32") == 0
    found = [json.loads(line) for line in gzip.decompress((tmp_path / "out.gz").read_bytes()).splitlines()]
    expected = pipeline("text-classification", model=str(trained["labelled"]), top_k=None)
    for line, values in zip(LINES, found, strict=True):
        if not line.strip():
            assert values == {"label": None}
            continue
        scores = {one["label"]: one["score"] for one in expected(line)[0]}
        assert values["scores"] == pytest.approx(scores, abs=1e-5)
        assert values["score"] == max(values["scores"].values()) == values["scores"][values["label"]]


def test_a_table_is_predicted_row_by_row(trained, labelled, tmp_path, capsys):
    (tmp_path / "in.csv").write_text('label,text\nx,"the dog, it\nis the hen"\ny,the fig sees the fir\n')
    assert predict(trained["labelled"], tmp_path / "in.csv") == 0
    assert [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()] == ["animal", "plant"]
    (tmp_path / "in.tsv").write_text("1\tthe oak is the elm\n")
    assert predict(trained["labelled"], tmp_path / "in.tsv") == 1
    message = capsys.readouterr().err
    assert str(tmp_path / "in.tsv") in message and "text_column" in message
    assert predict(trained["labelled"], tmp_path / "in.tsv", "--text-column", "2") == 0
    assert capsys.readouterr().out.startswith("plant\t")


def test_words_of_lines_and_of_conll_columns_are_tagged(trained, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes(b"the  dog sees the hen\n\nthe oak\n")
    assert predict(trained["tagged"], tmp_path / "in.txt") == 0
    assert capsys.readouterr().out == "O B-ANI O O B-ANI\n\nO B-PLA\n"
    (tmp_path / "in.conll").write_text("1\tthe\n2\tdog\n\n1\tthe\n2\toak\n")
    assert predict(trained["tagged"], tmp_path / "in.conll", "--text-column", "2", "--json") == 0
    [first, second] = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["words"] == ["the", "dog"] and first["tags"] == ["O", "B-ANI"] and second["tags"] == ["O", "B-PLA"]
    assert len(first["scores"]) == 2 and all(0.5 < score <= 1 for score in first["scores"])


def test_a_killed_prediction_goes_on_to_the_same_file(trained, tmp_path, small_windows):
    (tmp_path / "in.txt").write_text("".join(f"{LINES[number % 5]} {number}\n" for number in range(40)))
    assert predict(trained["labelled"], tmp_path / "in.txt", "--output", tmp_path / "once") == 0
    words = [trained["labelled"], tmp_path / "in.txt", "--output", tmp_path / "twice", "--resume"]
    with at_call(4, TextClassifier, "predict"):
        assert predict(*words) == 130
    assert (tmp_path / "twice").read_text().count("\n") == 9
    assert predict(*words) == 0
    assert (tmp_path / "twice").read_bytes() == (tmp_path / "once").read_bytes()


def test_predict_cuts_and_names_texts_that_are_too_long(trained, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("the dog\n" + "the dog sees the cow " * 300 + "\n")
    assert predict(trained["labelled"], tmp_path / "in.txt") == 0
    assert "line 2 is too long for the model and was cut" in capsys.readouterr().err
    assert predict(trained["tagged"], tmp_path / "in.txt") == 0
    out, err = capsys.readouterr()
    tags = out.splitlines()[1].split()
    assert len(tags) == 1500 and tags[:2] == ["O", "B-ANI"] and set(tags[1024:]) == {"_"}
    assert "line 2 is too long" in err


def test_models_of_other_commands_are_named(trained, text, tmp_path, capsys):
    tokenizer = VanillaTransformerTokenizer.train(["a b"], 262)
    config = VanillaTransformerConfig.from_preset("tiny", vocab_size=262, d_model=8, num_heads=2)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert predict(tmp_path / "model", text) == 1
    assert "give it to `translate` instead of `predict`" in capsys.readouterr().err
    assert main(["translate", str(trained["labelled"]), str(text)]) == 1
    assert "which does not translate: give it to `predict`" in capsys.readouterr().err
    assert predict(trained["labelled"], text, "--text-column", "2") == 2
    assert "lines of text have no columns" in capsys.readouterr().err
    data = ["--data", str(tmp_path / "in.tsv"), "--num-beams", "2"]
    (tmp_path / "in.tsv").write_text("text\tlabel\nx\tanimal\n")
    assert main(["evaluate", str(trained["labelled"]), *data]) == 1
    assert "num_beams is for models that write text" in capsys.readouterr().err


def test_lines_sent_through_a_pipe_are_answered_as_they_come(trained):
    words = [sys.executable, "-m", "vanilla_transformer", "predict", str(trained["labelled"])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        watchdog = threading.Timer(60, process.kill)  # Where the answer never comes.
        watchdog.daemon = True
        watchdog.start()
        for line, label in (("the dog is the cow", "animal"), ("the elm likes the fig", "plant")):
            process.stdin.write(f"{line}\n")
            assert process.stdout.readline().startswith(label)
        process.stdin.close()
        assert process.wait() == 0
        watchdog.cancel()


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_a_model_of_several_labels_or_numbers_is_refused(trained, text, tmp_path, capsys, problem):
    shutil.copytree(trained["labelled"], tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"problem_type": problem}))
    assert predict(tmp_path / "model", text) == 1
    assert f"trained for {problem}" in capsys.readouterr().err
