"""The scripts about the page on which a model computes: its numbers are compared, and its times are measured."""

import shutil
from pathlib import Path

import pytest
import torch

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)

pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
pytestmark = pytest.mark.skipif(
    not shutil.which("chromium"), reason="no browser: the package chromium is not installed"
)


@pytest.fixture
def saved(tmp_path) -> Path:
    torch.manual_seed(0)
    tokenizer = VanillaTransformerTokenizer.train(["a dog runs", "two men wait"] * 5, 270)
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes))
    model.generation_config.max_length_beyond_source = 3
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def row_of(main, argv, capsys, *options: str) -> list[str]:
    argv(*options)
    main()
    return [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]


def test_numbers_are_compared(saved, argv, monkeypatch, capsys):
    from scripts.stress import explore

    row = row_of(explore.main, argv, capsys, str(saved), "--words", "dog", "men")
    assert row[:2] == ["model", "2"] and int(row[2].replace(",", "")) > 1000 and int(row[5]) > 10
    assert float(row[3]) < 1e-4 and float(row[6]) < 1e-4


def test_a_number_that_differs_is_found(saved, argv, monkeypatch, capsys):
    from scripts.stress import explore

    right = explore.values_of

    def wrong(*arguments: object) -> dict:
        values = right(*arguments)
        values["model.encoder.layers.0.feed_forward.w_2"][0][0] += 0.25
        return values

    monkeypatch.setattr(explore, "values_of", wrong)
    row = row_of(explore.main, argv, capsys, str(saved), "--words", "dog")
    assert row[3:5] == ["2.5e-01", "model.encoder.layers.0.feed_forward.w_2"]


def test_times_are_measured(saved, argv, monkeypatch, capsys):
    from scripts.benchmarks import explore

    row = row_of(explore.main, argv, capsys, str(saved), "--words", "dog", "--openings", "1")
    assert row[0] == "model" and float(row[2]) > 0.3
    assert all(float(cell.split()[0]) > 0 for cell in row[3:6])
