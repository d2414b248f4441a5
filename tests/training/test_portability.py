"""Training without the features that only Linux has, with a message about what is missing."""

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import filelock
import psutil
import pytest
import torch
from faults import failing_disk
from refusals import refused

from vanilla_transformer import atomic_files, malloc
from vanilla_transformer.cli import main
from vanilla_transformer.errors import RunError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import devices, signals
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.run_directory import LOCK, RunDirectory


@pytest.fixture
def recipe(tmp_path):
    for name in ("pairs.en", "pairs.de"):
        (tmp_path / name).write_text("one two\nthree\nfour five six\n" * 4)
    shape = {"d_model": 8, "d_ff": 8, "num_heads": 1, "encoder_layers": 1, "decoder_layers": 1}
    steps = {"batch_tokens": 40, "batches_per_step": 2, "warmup_steps": 4, "save_steps": 2, "max_steps": 4}
    pairs = (str(tmp_path / "pairs.en"), str(tmp_path / "pairs.de"))
    return Recipe.of(train=pairs, vocab_size=264, preset="tiny", metrics=(), **shape, **steps)


@pytest.fixture
def unlocked(monkeypatch):
    """As a disk that cannot lock files, for the reason of that number."""

    def unlocked(number):
        def refuse(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(filelock._unix, "lock_fd_nonblocking", refuse)
        monkeypatch.setattr(filelock._descriptor, "_lock_fd_nonblocking", refuse)

    return unlocked


@pytest.fixture
def windows_memory(monkeypatch, missing):
    """Memory is measured as on Windows."""
    missing("resource")
    monkeypatch.setattr(devices, "Path", lambda path: Path("/nowhere"))
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=7)))


@pytest.fixture
def elsewhere(monkeypatch, missing, windows_memory):
    """As little as Windows has."""
    missing("fcntl")
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.delattr(signal, "SIGKILL")
    original_open, original_rename, original_fsync = os.open, os.rename, os.fsync

    def open_files_alone(path, flags, *rest, **named):
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original_open(path, flags, *rest, **named)

    def rename_to_what_is_free(source, target, **named):
        if os.path.exists(target):
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        original_rename(source, target, **named)

    def sync_what_may_be_written(descriptor):
        flags = int(Path(f"/proc/self/fdinfo/{descriptor}").read_text().partition("flags:")[2].split()[0], 8)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        original_fsync(descriptor)

    def no_library(name):
        raise TypeError("bad argument type for built-in operation")

    monkeypatch.setattr(os, "open", open_files_alone)
    monkeypatch.setattr(os, "rename", rename_to_what_is_free)
    if sys.platform == "linux":
        monkeypatch.setattr(os, "fsync", sync_what_may_be_written)
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)


def test_run_without_posix_features_resumes_to_identical_weights(recipe, tmp_path, monkeypatch, request):
    train(recipe.with_options(output=str(tmp_path / "linux")))
    request.getfixturevalue("elsewhere")
    elsewhere = recipe.with_options(output=str(tmp_path / "elsewhere"))
    train(elsewhere.with_options(max_steps=2))
    train(elsewhere)
    weights = [(tmp_path / name / "checkpoints/step-00000004/model.safetensors") for name in ("linux", "elsewhere")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert json.loads((tmp_path / "elsewhere" / "summary.json").read_text())["peak_memory_bytes"] == 7
    assert not malloc.keep_freed_memory()
    with signals.stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert stop.signal == signal.SIGTERM


def test_sighup_stays_ignored_under_nohup(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_disk_that_cannot_lock_is_trained_on_and_that_is_said(recipe, tmp_path, unlocked):
    unlocked(errno.ENOLCK)
    output = train(recipe.with_options(output=str(tmp_path / "model")))
    assert f"The disk of {output} cannot lock files" in (output / "train.log").read_text()


def test_a_lock_is_gone_with_the_run_and_one_left_behind_keeps_nobody_out(recipe, tmp_path):
    run = RunDirectory(tmp_path / "model")
    run.path.mkdir()
    (run.path / LOCK).write_text("")
    run.open(recipe)
    with refused(RunError, "Another process", "training"):
        RunDirectory(run.path).open(recipe)
    assert run.is_locked
    run.leave()
    assert not (run.path / LOCK).exists() and not run.is_locked


def test_a_directory_that_cannot_be_written_is_said_so(recipe, tmp_path, unlocked):
    unlocked(errno.EROFS)
    with refused(RunError, "model", "Read-only file system"):
        train(recipe.with_options(output=str(tmp_path / "model")))


def test_peak_memory_is_known_without_a_resource_module(windows_memory):
    assert devices.peak_memory(torch.device("cpu")) == 7


def test_a_text_that_cannot_be_written_leaves_the_former_one(tmp_path):
    (tmp_path / "README.md").write_text("years of work")
    with failing_disk(errno.ENOSPC), refused(OSError, "README.md", "No space left on device", "GB"):
        atomic_files.atomic_write_text(tmp_path / "README.md", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("README.md", "years of work")]


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


def test_a_replaced_text_keeps_its_link_and_its_rights(tmp_path):
    (tmp_path / "card.md").write_text("before")
    (tmp_path / "card.md").chmod(0o640)
    (tmp_path / "README.md").symlink_to("card.md")
    atomic_files.atomic_write_text(tmp_path / "README.md", "after\n")
    assert (tmp_path / "README.md").is_symlink()
    assert (tmp_path / "card.md").read_bytes() == b"after\n"
    assert (tmp_path / "card.md").stat().st_mode & 0o777 == 0o640
