"""Locks and rights of a run's directory."""

import os

import pytest
from refusals import refused
from small_models import small_recipe

from vanilla_transformer.cli import main
from vanilla_transformer.errors import RunError
from vanilla_transformer.training.run import train
from vanilla_transformer.training.run_directory import LOCK, RunDirectory


@pytest.fixture
def recipe(tmp_path):
    return small_recipe(tmp_path)


def test_a_lock_is_gone_with_the_run_and_one_left_behind_keeps_nobody_out(recipe, tmp_path):
    run = RunDirectory(tmp_path / "model")
    run.path.mkdir()
    (run.path / LOCK).write_text("")
    run.open(recipe)
    with refused(RunError, "Another process", "training"):
        RunDirectory(run.path).open(recipe)
    run.unlock()
    assert not (run.path / LOCK).exists()
    RunDirectory(run.path).open(recipe)


def test_rights_follow_the_umask(recipe, tmp_path):
    before = os.umask(0o027)
    try:
        train(recipe.with_options(output=str(tmp_path / "model")))
        assert main(["average", str(tmp_path / "model"), "--last", "1", "--output", str(tmp_path / "mean")]) == 0
    finally:
        os.umask(before)
    rights = {path: path.stat().st_mode & 0o777 for name in ("model", "mean") for path in (tmp_path / name).rglob("*")}
    assert {path.name for path in rights} >= {"model.safetensors", "optimizer.bin", "tokenizer.json"}
    assert {path.name: oct(mode) for path, mode in rights.items() if mode != (0o750 if path.is_dir() else 0o640)} == {}
