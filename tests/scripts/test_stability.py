"""Verdicts on runs: learning, stalled or diverged."""

import json
import math

import pytest
import torch

from scripts.experiments import stability

SETTING = stability.Setting("base", 4000, 2.0)


def curve(losses, diverged=False):
    steps = list(range(10, 10 * len(losses) + 1, 10))
    return stability.Curve(SETTING, steps, losses, 1e-3, 0.1, frequencies_alone=6.0, diverged=diverged)


def test_frequencies_alone_is_the_loss_of_the_best_constant_model():
    counts, smoothing = [0, 5, 3, 2], 0.1
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    logits = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_change=1e-12)

    def loss():
        return torch.nn.functional.cross_entropy(logits.expand(len(labels), 4), labels, label_smoothing=smoothing)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    assert stability.frequencies_alone(counts, smoothing) == pytest.approx(loss().item(), abs=1e-5)
    assert stability.frequencies_alone([1, 1, 1], 0.0) == pytest.approx(math.log(3))
    assert stability.frequencies_alone([0, 4], 0.0) == 0


def test_verdict_tells_learning_from_stalling_and_diverging():
    assert curve([9.0, 7.0, 5.0]).verdict == "learns"
    assert curve([9.0, 7.0, 6.5]).verdict == "stalls"
    assert curve([9.0, 5.2, 5.95]).verdict == "stalls"
    assert curve([9.0, 7.0, 5.85]).verdict == "learns"
    assert curve([9.0, 5.0, 6.5]).verdict.startswith("diverges: ends far above")
    assert curve([9.0, 7.0], diverged=True).verdict.endswith("after step 20")
    assert curve([], diverged=True).verdict.endswith("after step 0")


def test_rise_that_came_down_again_is_no_divergence_but_shown():
    back = curve([9.0, 5.0, 8.5, 5.0])
    assert back.verdict == "learns"
    assert back.largest_rise == 3.5


def test_runs_are_made_once_and_leave_table_picture_and_no_weights(pairs, tmp_path, capsys):
    words = [*pairs[0], "--output", str(tmp_path / "stability"), "--presets", "tiny", "--vocab-size", "270"]
    words += ["--scales", "1", "1e30", "--warmup-steps", "4", "--max-steps", "5", "--batch-tokens", "100"]
    words += ["--log-steps", "1", "--jobs", "2"]
    stability.main(words)
    captured = capsys.readouterr()
    assert "tiny-warmup4-rate1" in captured.err

    directory = tmp_path / "stability"
    learns, diverges = json.loads((directory / "stability.json").read_text())
    assert learns["steps"] == [1, 2, 3, 4, 5] and not learns["diverged"]
    assert learns["highest_rate"] == pytest.approx(128**-0.5 * 4**-0.5)
    assert diverges["diverged"] and "no number any more after step" in diverges["verdict"]
    text = (directory / "stability.md").read_text()
    assert text.strip() in captured.out
    assert "| tiny | 4 | 1 × Eq. 3 | 4.42e-02 | 5 |" in text
    assert (directory / "stability.png").read_bytes().startswith(b"\x89PNG")
    assert not list(directory.glob("*/model/*.safetensors")) and not list(directory.glob("*/model/checkpoints"))

    stability.main(words)
    assert "min" not in capsys.readouterr().err
    assert (directory / "stability.md").read_text() == text
