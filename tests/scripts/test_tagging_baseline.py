import json

import pytest

from scripts.experiments import tagging_baseline


@pytest.mark.parametrize(("tagger", "module"), [("crf", "pycrfsuite"), ("udpipe", "ufal.udpipe")])
def test_endings_and_neighbours_tell_the_tag(tagger, module, tmp_path, capsys):
    pytest.importorskip(module, reason=f"{module} is not installed")
    for name, words in (("train", ["walking", "jumping", "singing"]), ("dev", ["dancing"])):
        sentences = [f"the\tDET\ndog\tNOUN\nis\tAUX\n{word}\tVERB\n\n" for word in words]
        (tmp_path / f"{name}.conll").write_text("".join(sentences))
    files = ["--train", str(tmp_path / "train.conll"), "--dev", str(tmp_path / "dev.conll")]
    tagging_baseline.main([*files, "--tagger", tagger])
    [found] = json.loads(capsys.readouterr().out)["scores"]
    assert (found["name"], found["value"]) == ("token_accuracy", 100)


def test_features_are_of_the_word_and_of_those_beside_it():
    first, second = tagging_baseline.features(["McDonald's", "1999"])
    assert {"word=mcdonald's", "shape=XxXx'x", "suffix='s", "prefix=mcdo", "-1:none", "1:shape=9"} <= {*first}
    assert {"word=1999", "shape=9", "-1:word=mcdonald's", "-2:none"} <= {*second}
