"""From file to file: wherever a run was killed, `resume` ends with the bytes of an uninterrupted one."""

from pathlib import Path

import pytest

from vanilla_transformer.cli.files import answer_lines
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.translation import Hypothesis, TranslationResult

CHUNK = 3
LINES = [f"line {number} ä" for number in range(8)]


def answer(text: Path, output: Path, *, resume: bool = True) -> list[str]:
    """Answers each line by two, which show the lines that it was answered with; returns the lines that were."""
    answered = []

    def work(lines, progress):
        answered.extend(lines)
        progress(len(lines))
        return [TranslationResult((Hypothesis(f"{line} of {len(lines)} from {lines[0]}", None),)) for line in lines]

    def render(number, translation):
        return f"{number}: {translation.text}\n{number}: once more"

    answer_lines(text, output, work, render, chunk_lines=CHUNK, answer_lines=2, resume=resume)
    return answered


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def whole(text: Path, tmp_path: Path) -> bytes:
    answer(text, tmp_path / "whole", resume=False)
    return (tmp_path / "whole").read_bytes()


def test_a_run_killed_after_any_byte_goes_on_to_the_same_bytes(text, whole, tmp_path):
    output = tmp_path / "out"
    assert answer(text, output) == LINES and output.read_bytes() == whole
    for size in range(len(whole) + 1):
        output.write_bytes(whole[:size])
        done = whole[:size].count(b"\n") // 2
        assert answer(text, output) == LINES[done - done % CHUNK if done < len(LINES) else done :]
        assert output.read_bytes() == whole


def test_lines_before_invalid_utf8_are_written_and_the_run_goes_on_once_it_is_mended(text, whole, tmp_path):
    broken, output = tmp_path / "broken", tmp_path / "out"
    broken.write_bytes("".join(f"{line}\n" for line in LINES[: CHUNK + 1]).encode() + b"\xff\n")
    for _ in range(2):
        with pytest.raises(CorpusError):
            answer(broken, output)
        assert output.read_text(encoding="utf-8").count("\n") == 2 * (CHUNK + 1)
    assert answer(text, output) == LINES[CHUNK:]
    assert output.read_bytes() == whole
