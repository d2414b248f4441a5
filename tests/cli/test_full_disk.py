"""A disk that is full, and a limit on the size of files: outputs are whole or not there, and are named."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from faults import small_files

from scripts.stress import disks
from scripts.stress.disks import COMMANDS, RESUMED, SMALL
from vanilla_transformer.cli import main


@pytest.fixture(scope="session")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A text, models, and finished tasks; nothing is written to them."""
    named = disks.make_ground(tmp_path_factory.mktemp("things"))
    assert main(disks.words_of("translate-tasks", named, named["tasks"])) == 0
    return named


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path_factory.mktemp("disk")
    with ExitStack() as stack:
        try:
            stack.enter_context(disks.mounted(place))
        except PermissionError as error:
            pytest.skip(str(error))
        yield place


def walk(command: str, things: dict[str, str], place: Path, full: AbstractContextManager[None], capsys: Any) -> None:
    """The command fails for want of room, says so of what it was asked to write, leaves nothing, and works later."""
    words = disks.words_of(command, things, str(place / "output"))
    with full:
        assert main(words) == 1
    said = capsys.readouterr().err
    (error,) = (line for line in said.splitlines() if "error: " in line)
    disks.check_refusal(error, str(place / "output"))
    assert "Traceback" not in said
    if command not in RESUMED:
        assert not list(place.iterdir())
    assert main(words) == 0, capsys.readouterr().err
    disks.check_nothing_left_over(place)


# Graphs take long to write, and the limit shows the same of them.
ROOM = {command: 0 if command in SMALL else 8192 for command in sorted(COMMANDS.keys() - {"onnx", "web"})}


@pytest.mark.parametrize(("command", "left"), ROOM.items())
def test_a_full_disk_is_told_and_costs_nothing(command, left, things, disk, capsys):
    place = disk / command
    place.mkdir()
    try:
        walk(command, things, place, disks.filled(disk, left), capsys)
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_limit_on_the_size_of_files_is_told_and_costs_nothing(command, things, tmp_path, capsys):
    walk(command, things, tmp_path, small_files(16 if command in SMALL else 2048), capsys)
