import json

from scripts.experiments import text_baseline


def test_words_that_tell_the_label_are_found(tmp_path, capsys):
    texts = [(label, f"{word} {number}") for number in range(10) for label, word in (("A", "dog"), ("B", "oak"))]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{label}\tthe {text}\n" for label, text in texts))
    columns = ["text_column=2", "label_column=1"]
    words = [word for name in ("train", "dev") for word in (f"--{name}", str(tmp_path / f"{name}.tsv"), *columns)]
    text_baseline.main(words)
    result = json.loads(capsys.readouterr().out)
    assert {one["name"]: one["value"] for one in result["scores"]} == {"accuracy": 100, "macro_f1": 100}
