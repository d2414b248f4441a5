"""Language models: each token is predicted once, in training and in scores, whatever the blocks."""

import gzip
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from vanilla_transformer.cli import main
from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.text_lines import MAX_PIECE_LENGTH
from vanilla_transformer.loading.tokenizers import load_own_tokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task, task_for, task_of_model
from vanilla_transformer.tasks.masked_language_modeling import masked, tokens_masked
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.training.run import train

PACKED = Recipe.of(task="language-modeling", documents="packed", max_length=9)
PACKED_FORM = task_for(PACKED).form
# Line ends of both kinds, empty lines, spaces at both ends of lines, no end of the last, and what is not ASCII.
TEXT = "First:\r\n\n\n  the cat\tsees  \nthe hen\n \nÖl und Öl\x0b\u2028ja\nno end"


def last_target_tokens(model: Path) -> int:
    records = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    return [record["target_tokens"] for record in records if "target_tokens" in record][-1]


def test_a_long_line_loses_no_token_in_training(lines, trained, tmp_path):
    words = "the cat likes the hen " * 30
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(f"{words}\nthe dog\n\n".encode()))
    changes = {"train": (str(tmp_path / "train.txt.gz"),), "dev": (), "vocab_size": 264, "max_steps": 40}
    model = train(lines.with_options(**changes, output=str(tmp_path / "model"))).directory
    tokenizer = load_own_tokenizer(model)
    # Of each text its end counts and its beginning does not.
    tokens = sum(len(tokenizer(text)["input_ids"]) for text in (words, "the dog"))
    epochs = json.loads((model / "summary.json").read_text())["epochs"]
    assert last_target_tokens(model) == pytest.approx(epochs * tokens)
    assert "1 are empty" in (model / "train.log").read_text()
    tokenizer, text = load_own_tokenizer(trained("masked")), "the dog sees the cat " * 20
    encoder = get_task("masked-language-modeling").encoder(Recipe.of(max_length=9))
    blocks = encoder.encode({"text": [text]}, tokenizer)["text"]
    inner = [token for block in blocks for token in block[1:-1]]
    assert inner == tokenizer(text, add_special_tokens=False)["input_ids"] and max(map(len, blocks)) == 9


def test_scores_are_those_of_the_logits_of_each_block(trained, tmp_path, capsys):
    text = " ".join(["the dog sees the cat"] * 9)
    (tmp_path / "in.tsv").write_text(f"text\n{text}\nthe ö\n")
    words = ["--data", str(tmp_path / "in.tsv"), "--metrics", "perplexity", "bits_per_character", "bits_per_byte"]
    words += ["--json", "--batch-tokens", "20"]
    assert main(["evaluate", str(trained("lines")), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    values = {score["name"]: score["value"] for score in found["scores"]}
    model = AutoModelForCausalLM.from_pretrained(trained("lines")).eval()
    tokenizer = load_own_tokenizer(trained("lines"))
    nats = tokens = 0.0
    for one in (text, "the ö"):
        ids = [*tokenizer(one)["input_ids"], tokenizer.eos_token_id]
        predicted, start = 1, 0
        while predicted < len(ids):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids[start : start + 16]])).logits[0].log_softmax(-1)
            for place in range(predicted, min(start + 16, len(ids))):
                nats -= float(logits[place - start - 1, ids[place]])
            predicted, start = start + 16, start + 15
        tokens += len(ids) - 1
    characters = len(text) + 5
    assert values["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert values["bits_per_character"] == pytest.approx(nats / math.log(2) / characters, rel=1e-4)
    assert values["bits_per_byte"] == pytest.approx(nats / math.log(2) / (characters + 1), rel=1e-4)
    assert found["tokens"] == tokens and "|context:16|ends:counted|" in found["scores"][0]["signature"]


def test_packed_text_is_scored_whole_with_each_row_counted_once(trained, packed, capsys):
    [data] = packed.data.dev[0].parts
    task, corpus = task_of_model(trained("packed")), read_corpus(packed.data.dev[0], form=PACKED_FORM)
    model = AutoModelForCausalLM.from_pretrained(trained("packed")).eval()
    tokenizer, text, told = load_own_tokenizer(trained("packed")), Path(data).read_bytes().decode(), []
    found = task.evaluate(model, tokenizer, corpus, ["perplexity"], progress=told.append)
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text) + 2  # The beginning, and a character of two bytes that training never saw.
    assert sum(told) == len(corpus) and found.figures["tokens"] == len(ids) - 1 and found.references == [text]
    nats = 0.0
    for start in range(0, len(ids) - 1, 16):
        block = torch.tensor([ids[start : start + 17]])
        with torch.no_grad():
            logs = model(input_ids=block).logits[0, :-1].log_softmax(-1)
        nats -= float(logs.gather(1, block[0, 1:, None]).sum())
    assert found.scores["perplexity"].value == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-3)
    assert "|context:17|ends:none|" in found.scores["perplexity"].signature
    characters = len(gzip.decompress(Path(packed.data.train[0].parts[0]).read_bytes()).decode())
    epochs = json.loads((trained("packed") / "summary.json").read_text())["epochs"]
    assert last_target_tokens(trained("packed")) == pytest.approx(epochs * characters)


@pytest.mark.parametrize("algorithm", ["character", "bpe", "wordpiece"])
@pytest.mark.parametrize("most", [2, 9, 500])
def test_packed_blocks_return_each_character(algorithm, most, tmp_path):
    (tmp_path / "in.txt").write_bytes(TEXT.encode())
    size = 262 if algorithm == "character" else 264
    tokenizer = train_tokenizer([TEXT], size, algorithm=algorithm, begins=True, ends=False)
    text = read_corpus([str(tmp_path / "in.txt")], form=PACKED_FORM)
    encoder = task_for(PACKED).encoder(PACKED)
    corpus = prepare_corpus(text, tokenizer, encoder, max_length=most, directory=tmp_path / "ids")
    blocks = [list(map(int, row)) for row in corpus.rows(range(len(corpus)))["text"]]
    assert blocks[0][0] == tokenizer.bos_token_id
    assert all(later[0] == block[-1] for block, later in zip(blocks, blocks[1:], strict=False))
    assert all(len(block) == most for block in blocks[:-1]) and 2 <= len(blocks[-1]) <= most
    assert tokenizer.decode([token for block in blocks for token in block[1:]]) == TEXT


def test_text_without_line_ends_is_read_in_pieces(tmp_path):
    (tmp_path / "in.txt").write_text("ab" * MAX_PIECE_LENGTH + "c")
    pieces = read_corpus([str(tmp_path / "in.txt")], form=PACKED_FORM, cache_dir=tmp_path / "cache")["text"]
    assert pieces[0] == "" and "".join(pieces) == "ab" * MAX_PIECE_LENGTH + "c"
    assert max(map(len, pieces)) == MAX_PIECE_LENGTH


def test_an_option_of_evaluate_is_refused_where_it_means_nothing(trained, recipes, capsys):
    data = ["--data", *recipes["lines"].data.dev[0].parts]
    assert main(["evaluate", str(trained("lines")), *data, "--num-beams", "2"]) == 2
    assert "num_beams" in capsys.readouterr().err


def test_a_score_that_is_no_number_is_left_out_of_the_card_and_null_in_json(trained, recipes, tmp_path, capsys):
    model = shutil.copytree(trained("lines"), tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    save_file({name: weight * 1e6 for name, weight in weights.items()}, model / "model.safetensors")
    words = ["evaluate", str(model), "--data", *recipes["lines"].data.dev[0].parts, "--card"]
    assert main(words) == 0 and "leaves out" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [score["value"] is None for score in found["scores"]] == [True, False]
    assert "inf" not in str(ModelCard.load(model / "README.md").data.to_dict()["model-index"])


@pytest.mark.parametrize("kind", ["lines", "packed", "masked"])
def test_files_of_scores_and_predictions_have_log_probabilities_and_numbers_of_tokens(trained, tmp_path, capsys, kind):
    (tmp_path / "in.txt").write_text("the dog sees the cat\n\ncat the the the sees\n")
    words = [str(trained(kind)), str(tmp_path / "in.txt"), "--precision", "float32"]
    if kind == "masked":
        assert main(["predict", *words]) == 1 and "pipeline" in capsys.readouterr().err
        return
    assert main(["predict", *words, "--json"]) == 0
    likely, empty, unlikely = map(json.loads, capsys.readouterr().out.splitlines())
    assert empty["log_probability"] is None and likely["tokens"] >= 7
    assert likely["log_probability"] < 0
    if kind == "lines":
        assert unlikely["log_probability"] < likely["log_probability"] - 5
        assert main(["predict", *words]) == 0
        printed = capsys.readouterr().out
        words = ["--data", words[1], "--output", str(tmp_path / "out.txt"), "--precision", "float32"]
        assert main(["evaluate", str(trained(kind)), *words]) == 0
        assert (tmp_path / "out.txt").read_text() == printed


@pytest.mark.parametrize(("length", "count"), [(2, 0), (3, 1), (5, 1), (12, 2), (22, 3), (102, 15), (1002, 150)])
def test_exactly_so_many_tokens_of_a_row_are_masked(length, count):
    assert tokens_masked(np.array([length], dtype=np.uint16)).tolist() == [count]
    ids = [1, *([9] * (length - 2)), 2]
    seen, labels = masked(ids, np.random.default_rng(0), 300)
    assert (labels != -100).sum() == count and labels[0] == labels[-1] == -100
    assert (seen[labels == -100] == np.array(ids)[labels == -100]).all() and set(labels) <= {9, -100}


def test_80_percent_of_masked_tokens_are_hidden_and_10_replaced():
    seen, labels = masked([1, *([9] * 100_000), 2], np.random.default_rng(0), 300)
    there = seen[labels != -100]
    others = there[(there != 299) & (there != 9)]
    assert (there == 299).mean() == pytest.approx(0.8, abs=0.01)
    assert len(others) / len(there) == pytest.approx(0.1, abs=0.01)
    assert others.min() >= 4 and others.max() <= 298
