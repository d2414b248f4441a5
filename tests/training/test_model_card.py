import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from small_models import save_translator, write_summary

from vanilla_transformer import Translator, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.evaluation import Score
from vanilla_transformer.graph.onnx_file import renew
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.model_card import add_scores, is_unmodified, write_model_card
from vanilla_transformer.training.summary import Summary

BLEU = Score("sacrebleu", 31.254, "nrefs:1|case:mixed|tok:13a")
RECIPE = Recipe.of(
    train=("org/pairs:en-de:train",), test=("org/pairs:en-de:test",), examples=('Say "cat".',), max_length=99
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A random model whose card is still to be written."""
    return save_translator(tmp_path / "cat-en-de", decoder_layers=2)


def card_of(directory: Path) -> ModelCard:
    return ModelCard.load(directory / "README.md")


def rows(directory: Path) -> list[str]:
    """Returns the first cells of the table of scores."""
    return re.findall(r"^\| ([^|]+?) \| \w+ \| [\d.]+ \| `", card_of(directory).text, re.MULTILINE)


def test_the_card_of_a_run_says_what_is_known(directory: Path) -> None:
    (directory / "recipe.yaml").write_text(RECIPE.to_yaml())
    summary = write_summary(directory, scores={"test": [BLEU]}, languages=["en", "deu_Latn"])
    write_model_card(directory, summary, ["Sag."])
    card = card_of(directory)
    (result,) = card.data.eval_results
    place = "org/pairs", "org/pairs:en-de:test", "test"
    assert (result.dataset_type, result.dataset_name, result.dataset_split) == place
    assert (result.metric_type, result.metric_value) == ("sacrebleu", 31.25)
    assert result.metric_args == {"signature": BLEU.signature}
    assert card.data.language == ["en", "deu"] and card.data.datasets == ["org/pairs"]
    assert card.data.get("license") is None and card.data.get("base_model") is None
    weights = VanillaTransformerForConditionalGeneration.from_pretrained(directory).num_parameters()
    for words in (
        "for en to deu_Latn.",
        r'pipe("Say \"cat\".")',
        'pipeline("translation", model="cat-en-de", trust_remote_code=True)',
        r"| org/pairs:en-de:test | sacrebleu | 31.25 | `nrefs:1\|case:mixed\|tok:13a` |",
        "29,000 pairs",
        "The weights are the mean of the checkpoints of steps 1,900, 2,000.",
        "Loss on dev: 1.3000 nats per target token at the end, 1.2500 at best (step 1,900), before averaging.",
        f"{weights:,} parameters: 1+2 layers with d_model 16, 2 heads, vocabulary size 260.",
        "2,058 target tokens/s; 2.50e+15 FLOPs; peak memory 0.00 GB.",
        "beam size 4, length penalty 0.6, at most 50 tokens more than the source",
        "max_length: 99",
    ):
        assert words in card.text, words
    assert "learning_curves.png" not in card.text  # There is no such file.
    assert not re.search(r"None|\n\n\n|[{}]{2}", card.text)


@pytest.mark.parametrize(("start", "base"), [("org/general", "org/general"), ("general", None), ("/a/b", None)])
def test_a_starting_model_is_a_base_model_on_the_hub_if_its_name_has_an_owner(directory, start, base) -> None:
    (directory / "recipe.yaml").write_text(RECIPE.with_options(from_model=start).to_yaml())
    write_model_card(directory, write_summary(directory))
    assert card_of(directory).data.get("base_model") == base


@pytest.mark.parametrize(("activation", "known"), [("relu", True), ("quick_gelu", False)])
def test_a_card_shows_lines_that_need_no_package(activation, known, tmp_path, monkeypatch, capsys) -> None:
    directory = save_translator(tmp_path / "cat-en-de", activation_function=activation)
    assert (renew(directory) is None) == known
    (directory / "recipe.yaml").write_text(RECIPE.to_yaml())
    write_model_card(directory, write_summary(directory))
    clients = re.findall(r"^```python\n(import numpy.*?)^```$", card_of(directory).text, re.MULTILINE | re.DOTALL)
    assert len(clients) == known
    for client in clients:
        monkeypatch.chdir(directory)
        exec(client)
        expected = Translator(directory, precision="float32")('Say "cat".')
        text, score = capsys.readouterr().out.rsplit(maxsplit=1)
        assert (text, float(score)) == (expected.text, pytest.approx(expected.score, abs=1e-4))


def test_evaluate_puts_its_scores_into_the_card(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = directory.parent / "test.jsonl"
    corpus.write_text('{"en": "a cat", "de": "eine Katze", "fr": "un chat"}\n')
    evaluate = ["evaluate", str(directory), "--card", "--data", str(corpus), "source_column=en"]
    german = [*evaluate, "target_column=de", "--metrics", "chrf"]
    assert main(german) == main([*german, "ter", "--num-beams", "1"]) == main(german) == 0
    assert main([*evaluate, "target_column=fr", "--metrics", "chrf", "--precision", "bfloat16"]) == 0
    card = card_of(directory)
    results = [(one.metric_type, one.metric_args.get("num_beams")) for one in card.data.eval_results]
    assert sorted(results, key=str) == [("chrf", 1), ("chrf", None), ("chrf", None), ("ter", 1)]
    assert card.data.eval_results[-1].metric_args["precision"].startswith("bfloat16")
    assert card.data.metrics == ["chrf", "ter"]
    names = {row.partition(",")[0] for row in rows(directory)}
    assert names == {"test.jsonl (en to de)", "test.jsonl (en to fr)"}
    assert "No scores are given here" not in card.text and is_unmodified((directory / "README.md").read_text())
    assert main(["evaluate", "org/name", "--data", str(corpus), "--card"]) == 2
    assert "--card is for the directory of a single model" in capsys.readouterr().err
    (directory / "README.md").write_text("---\ntags: [\n---\n")
    assert main(["evaluate", str(directory), "--card", "--data", "none.tsv"]) == 1  # Before anything is read.
    assert "The metadata of the card" in capsys.readouterr().err


def test_what_others_have_put_into_a_card_stays(directory: Path) -> None:
    result = "{task: {type: t}, dataset: {type: d, name: d}, metrics: [{type: bleu, value: 1, args: [1]}]}"
    head = f"mine: 1\nmetrics: [bleu, {{name: x}}]\nmodel-index: [{{name: m, results: [{result}]}}]"
    body = "\r\n# Our cat\r\n\r\nWritten by hand.\r\n\r\n## Scores\r\n"
    (directory / "README.md").write_bytes(f"---\n{head}\n---\n{body}".encode())
    for value in (1.0, 32.0):
        add_scores(directory, CorpusSpec(("test.en", "test.de")), [replace(BLEU, value=value)], {})
    card = card_of(directory)
    assert card.data.metrics == ["bleu", {"name": "x"}, "sacrebleu"]
    assert card.data.to_dict()["mine"] == 1
    assert [(one.metric_args, one.metric_value) for one in card.data.eval_results] == [
        ([1], 1),
        ({"signature": BLEU.signature}, 32.0),
    ]
    assert (directory / "README.md").read_bytes().decode().endswith(body)


def test_a_summary_is_json_whatever_its_numbers_are(tmp_path: Path) -> None:
    scores = {"dev": [Score("wer", float("nan"), "")]}
    write_summary(tmp_path, last_dev_loss=float("inf"), scores=scores)
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["last_dev_loss"] is None and summary["scores"]["dev"][0]["value"] is None
    del summary["languages"]  # As earlier versions have written it, with fields of their own.
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"last_loss": 1.0}))
    again = Summary.read(tmp_path / "summary.json")
    [score] = again.scores["dev"]
    assert math.isnan(score.value) and "dev" not in " ".join(again.sentences("tokens"))
