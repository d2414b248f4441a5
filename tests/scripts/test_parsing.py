"""Section 6.3 on trees that a small grammar writes."""

import json

from scripts.experiments import parsing
from vanilla_transformer.extras.parsing.trees import read_trees


def test_each_sentence_has_exactly_one_tree(tmp_path):
    parsing.write_treebank(tmp_path, {"train": 300, "test": 100})
    pairs = [pair for name in ("train", "test") for pair in read_trees(str(tmp_path / f"{name}.mrg"))]
    assert len(pairs) == 400 and len({sentence for sentence, _ in pairs}) == 400
    by_shape = {}
    for sentence, tree in pairs:
        tags = " ".join(
            next((tag for tag, words in parsing.WORDS.items() if word in words)) for word in sentence.split()
        )
        assert by_shape.setdefault(tags, tree) == tree


def test_a_parser_is_trained_and_scored(tmp_path):
    parsing.main([str(tmp_path), "--trees", "10", "--max-steps", "2"])
    [score] = json.loads((tmp_path / "model" / "summary.json").read_text())["scores"]["test"]
    assert score["name"] == "bracketing" and 0 <= score["value"] <= 100
