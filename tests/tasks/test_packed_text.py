"""Raw text as it stands: one stream of tokens, cut into blocks of which none is lost, by training and by scores."""

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from refusals import refused
from transformers import AutoModelForCausalLM

from vanilla_transformer.cli import main
from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.sources import parse_corpus
from vanilla_transformer.data.text_lines import LONGEST_PIECE
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import task_for, task_of_model
from vanilla_transformer.training.loop import train

PACKED = Recipe.of(task="language-modeling", documents="packed", max_length=9)
# Line ends of both kinds, empty lines, spaces at both ends of lines, no end of the last, and what is not ASCII.
TEXT = "First:\r\n\n\n  the cat\tsees  \nthe hen\n \nÖl und Öl\x0b\u2028ja\nno end"


@pytest.fixture(scope="module")
def packed(lines, tmp_path_factory) -> Recipe:
    """A text of short lines, and another one to measure on, one of whose characters is new."""
    directory = tmp_path_factory.mktemp("packed")
    text = "A:\n  the cat sees the hen\n\nB:\n  the hen sees the cat\n\n"
    (directory / "train.txt.gz").write_bytes(gzip.compress((text * 40).encode()))
    (directory / "dev.txt").write_text(text * 3 + "é!")
    changes = {
        "documents": "packed",
        "tokenizer_algorithm": "character",
        "vocab_size": 260,
        "examples": ("A:\n  the",),
    }
    corpora = {"train": (str(directory / "train.txt.gz"),), "dev": (str(directory / "dev.txt"),)}
    metrics = ("perplexity", "bits_per_character", "bits_per_byte")
    return lines.with_options(**corpora, **changes, metrics=metrics, max_length=17)


@pytest.fixture(scope="module")
def model(packed, tmp_path_factory):
    return train(packed.with_options(output=str(tmp_path_factory.mktemp("packed") / "model")))


@pytest.mark.parametrize("algorithm", ["character", "bpe", "wordpiece"])
@pytest.mark.parametrize("most", [2, 9, 500])
def test_each_token_is_predicted_once_and_each_character_returned(algorithm, most, tmp_path):
    (tmp_path / "in.txt").write_bytes(TEXT.encode())
    tokenizer = VanillaTransformerTokenizer.train(
        [TEXT], 262 if algorithm == "character" else 264, algorithm=algorithm, begins=True, ends=False
    )
    task = task_for(PACKED)
    stream = read_corpus(parse_corpus([str(tmp_path / "in.txt")]), form=task.form)
    corpus = prepare_corpus(stream, tokenizer, task.encoder(PACKED), max_length=most, directory=tmp_path / "ids")
    blocks = [list(map(int, row)) for row in corpus.rows(range(len(corpus)))["text"]]
    assert blocks[0][0] == tokenizer.bos_token_id
    assert all(later[0] == block[-1] for block, later in zip(blocks, blocks[1:], strict=False))
    assert all(len(block) == most for block in blocks[:-1]) and 2 <= len(blocks[-1]) <= most
    assert tokenizer.decode([token for block in blocks for token in block[1:]]) == TEXT
    assert corpus.report.kept == corpus.report.read == len(blocks)


def test_text_without_line_ends_is_read_in_pieces(tmp_path):
    (tmp_path / "in.txt").write_text("ab" * LONGEST_PIECE + "c")
    form = task_for(PACKED).form
    pieces = read_corpus([str(tmp_path / "in.txt")], form=form, cache_dir=tmp_path / "cache")["text"]
    assert pieces[0] == "" and "".join(pieces) == "ab" * LONGEST_PIECE + "c"
    assert max(map(len, pieces)) == LONGEST_PIECE
    assert read_corpus([str(tmp_path / "in.txt")], form=task_for(Recipe.of(task=PACKED.task)).form)["text"][0] != ""


def test_scores_count_each_character_once_whatever_the_stride(model, packed, capsys):
    [data] = packed.data.dev[0].parts
    text = Path(data).read_bytes().decode()
    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    tokenizer = VanillaTransformerTokenizer.from_pretrained(model)
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text) + 2  # The beginning, and a character of two bytes that training never saw.
    for words, stride in (([], 16), (["--stride", "1"], 1), (["--stride", "5"], 5)):
        assert main(["evaluate", str(model), "--data", data, "--json", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        nats, predicted, start = 0.0, 1, 0
        while predicted < len(ids):
            with torch.no_grad():
                logits = loaded(input_ids=torch.tensor([ids[start : start + 17]])).logits[0].log_softmax(-1)
            for place in range(predicted, min(start + 17, len(ids))):
                nats -= float(logits[place - start - 1, ids[place]])
            predicted, start = start + 17, start + stride
        values = {one["name"]: one["value"] for one in found["scores"]}
        assert values["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-4)
        assert values["bits_per_character"] == pytest.approx(nats / math.log(2) / len(text), rel=1e-4)
        assert values["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-4)
        assert f"|context:17|stride:{stride}|ends:none|" in found["scores"][0]["signature"]
        assert found["tokens"] == len(ids) - 1


def test_progress_counts_each_row_once(model, packed):
    task, corpus = task_of_model(model), read_corpus(packed.data.dev[0], form=task_of_model(model).form)
    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    tokenizer = VanillaTransformerTokenizer.from_pretrained(model)
    told = []
    task.evaluate(loaded, tokenizer, corpus, packed.evaluation.metrics, progress=told.append, stride=5)
    assert sum(told) == len(corpus)


def test_the_run_says_what_is_new_in_dev_and_its_card_what_it_learned_from(model, packed):
    log = (model / "train.log").read_text()
    assert "dev has 2 characters that never occur in train, 2 in all" in log and "'é' 1" in log and "'!' 1" in log
    assert (
        "It was trained on running text in blocks of 17 tokens, and knows no end of a text."
        in (model / "README.md").read_text()
    )
    summary = json.loads((model / "summary.json").read_text())
    assert {score["name"] for score in summary["scores"]["dev"]} == {*packed.evaluation.metrics}
    characters = len(gzip.decompress(Path(packed.data.train[0].parts[0]).read_bytes()).decode())
    records = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if "target_tokens" in record][-1]
    assert last["target_tokens"] == pytest.approx(summary["epochs"] * characters)
    assert ModelCard.load(model / "README.md").data.pipeline_tag == "text-generation"


def test_a_stopped_run_goes_on_to_the_same_weights(model, packed, stopped):
    assert stopped(packed) == (model / "model.safetensors").read_bytes()


def test_averaged_model_without_a_recipe_still_reads_packed_text(model, tmp_path, capsys):
    assert main(["average", str(model), "--last", "2", "--output", str(tmp_path / "mean")]) == 0
    capsys.readouterr()
    assert not (tmp_path / "mean/recipe.yaml").exists() and task_of_model(tmp_path / "mean").form.packed
    (tmp_path / "in.txt").write_text("the cat\n\n")
    assert main(["predict", str(tmp_path / "mean"), str(tmp_path / "in.txt"), "--json"]) == 0
    first, empty = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["tokens"] == len("the cat") and empty["log_probability"] is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train": ("table.tsv",)}, "table.tsv packed"),
        ({"train": ("empty.txt",)}, "empty.txt"),
        ({"task": "masked-language-modeling"}, "documents masked-language-modeling"),
        ({"task": "translation", "metrics": None}, "packed"),
    ],
)
def test_recipes_that_cannot_pack_text_are_refused(packed, changes, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.tsv").write_text("text\nthe cat\n")
    (tmp_path / "empty.txt").write_text("")
    with refused((RecipeError, CorpusError), *named.split()):
        train(packed.with_options(output=str(tmp_path / "model"), **changes))


def test_a_stride_is_refused_where_it_means_nothing(model, trained, packed, masked_lines, capsys):
    data = ["--data", *packed.data.dev[0].parts]
    assert main(["evaluate", str(model), *data, "--stride", "17"]) == 1
    assert "stride must be at least 1 and at most 16" in capsys.readouterr().err
    data = ["--data", *masked_lines.data.dev[0].parts]
    assert main(["evaluate", str(trained["masked_lines"]), *data, "--stride", "3"]) == 1
    assert "stride is for language models, but this one is for masked-language-modeling" in capsys.readouterr().err
