import json

from scripts.experiments import text_baseline

COLUMNS = ["text_column=2", "label_column=1"]


def accuracy(scores):
    return {one["name"]: one["value"] for one in scores}["accuracy"]


def test_words_that_tell_the_label_are_found(tmp_path, capsys):
    texts = [(label, f"{word} {number}") for number in range(10) for label, word in (("A", "dog"), ("B", "oak"))]
    (tmp_path / "texts.tsv").write_text("".join(f"{label}\tthe {text}\n" for label, text in texts))
    (tmp_path / "kept_back.tsv").write_text("A\tthe dog\nA\tthe oak\n")
    words = [str(tmp_path / "texts.tsv"), *COLUMNS]
    text_baseline.main(["--train", *words, "--dev", *words])
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [*scores] == ["dev"] and {one["name"] for one in scores["dev"]} == {"accuracy", "macro_f1"}
    assert accuracy(scores["dev"]) == 100

    # A file that was kept back is scored by itself: one of its two labels is wrong.
    text_baseline.main(["--train", *words, "--dev", *words, "--test", str(tmp_path / "kept_back.tsv"), *COLUMNS])
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert (accuracy(scores["dev"]), accuracy(scores["test"])) == (100, 50)
