import json

import pytest

from scripts.experiments import tagging_baseline


def test_endings_and_neighbours_tell_the_tag(tmp_path, capsys):
    pytest.importorskip("pycrfsuite", reason="python-crfsuite is not installed")
    for name, words in (("train", ["walking", "jumping", "singing"]), ("dev", ["dancing"])):
        sentences = [f"the\tDET\ndog\tNOUN\nis\tAUX\n{word}\tVERB\n\n" for word in words]
        (tmp_path / f"{name}.conll").write_text("".join(sentences))
    tagging_baseline.main(["--train", str(tmp_path / "train.conll"), "--dev", str(tmp_path / "dev.conll")])
    [found] = json.loads(capsys.readouterr().out)["scores"]
    assert (found["name"], found["value"]) == ("token_accuracy", 100)


def test_features_are_of_the_word_and_of_those_beside_it():
    first, second = tagging_baseline.features(["McDonald's", "1999"])
    assert {"word=mcdonald's", "shape=XxXx'x", "suffix='s", "prefix=mcdo", "-1:none", "1:shape=9"} <= {*first}
    assert {"word=1999", "shape=9", "-1:word=mcdonald's", "-2:none"} <= {*second}
