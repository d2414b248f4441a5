"""The measurement of single calls from several threads, on a small model."""

import sys

import torch

from scripts.benchmarks import service
from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)

SIZES = {"vocab_size": 260, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def test_three_ways_to_call_are_listed_with_equal_answers(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SIZES)).save_pretrained(tmp_path / "model")
    VanillaTransformerTokenizer.train(["a b"], vocab_size=260).save_pretrained(tmp_path / "model")
    (tmp_path / "words").write_text("a b\nb\na\nb a\n")
    words = [
        "service",
        str(tmp_path / "model"),
        str(tmp_path / "words"),
        "--calls",
        "4",
        "--turns",
        "1",
        "--num-beams",
        "1",
    ]
    monkeypatch.setattr(sys, "argv", words)
    service.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[1].strip() for row in rows] == ["one thread", "4 threads", "4 threads, Batcher"]
    assert all(float(row[3]) > 0 for row in rows)


def test_answers_that_differ_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "load_model", lambda *args, **kwargs: (None, None))
    monkeypatch.setattr(service, "translate_lines", lambda model, tokenizer, lines: iter([Answer("one")]))
    monkeypatch.setattr(service, "Batcher", Other)
    (tmp_path / "words").write_text("a\nb\n")
    monkeypatch.setattr(sys, "argv", ["service", "model", str(tmp_path / "words"), "--calls", "2", "--turns", "1"])
    service.main()
    assert "Answers that differ: 2" in capsys.readouterr().out


class Answer:
    def __init__(self, text: str) -> None:
        self.text = text


class Other:
    def __init__(self, model: None, tokenizer: None) -> None: ...

    def __enter__(self):
        return lambda line: Answer("another")

    def __exit__(self, *error) -> None: ...
