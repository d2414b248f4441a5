"""Disks that refuse some operations, such as network shares: every output is written without them."""

import errno
import os

import pytest
from faults import failing_disk
from small_models import small_recipe

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.cli import main
from vanilla_transformer.training.run import train

COMMANDS = [
    "average run --output mean",
    "evaluate run --data train.en train.de --card --output kept",
    "export run graph --to onnx",
    "convert run marian",
    "tokenizer train.en --vocab-size 275 --output tokenizer",
]


def test_every_output_is_written_to_a_disk_that_changes_no_permissions_and_has_no_fsync(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.chdir(tmp_path)
    for name in ("chmod", "fchmod", "utime", "link"):
        monkeypatch.setattr(os, name, refuse)
    with failing_disk(errno.EINVAL, tmp_path):
        run = train(small_recipe(tmp_path, output="run", metrics=("chrf",)))
        (tmp_path / "kept").touch()
        assert [main(words.split()) for words in COMMANDS] == [0] * len(COMMANDS)
    assert run.scores and (tmp_path / "graph" / "translate.onnx").is_file()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_text_that_does_not_reach_the_disk_replaces_nothing(tmp_path, number):
    (tmp_path / "file").write_text("before")
    with failing_disk(number, tmp_path), pytest.raises(OSError, match=os.strerror(number)):
        atomic_write_text(tmp_path / "file", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "before"
