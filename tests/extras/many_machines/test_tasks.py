"""Numbered tasks: what is done stays, what was broken off goes on, what belongs elsewhere is refused."""

import itertools
import os
import signal

import fsspec
import pytest
from refusals import refused

from vanilla_transformer.extras.many_machines.folder import TaskError, TaskFolder
from vanilla_transformer.extras.many_machines.numbered_translation import (
    job_of,
    join_parts,
    part_name,
    run_task,
    unfinished,
)
from vanilla_transformer.translation import Hypothesis, Translation

LINES = [f"line {number} ä" for number in range(23)]
TASKS = 4
MODEL = {"model": "tiny", "--num-beams": 4}
_STORES = itertools.count()


class Shouting:
    """Translates a line into capitals, and keeps which chunks it was given."""

    chunk_lines = 2

    def __init__(self, before=lambda number: None):
        self.seen, self.before = [], before

    def translate(self, lines, progress=lambda count: None):
        self.before(len(self.seen))
        self.seen.append(lines)
        return [Translation((Hypothesis(line.upper(), None, 1),)) for line in lines]


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    """A folder on the disk, and one in a store of another kind."""
    return TaskFolder(str(tmp_path / "parts") if request.param == "disk" else f"memory://parts-{next(_STORES)}")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def do(folder, text, number, translator=None, *, model=MODEL, tasks=TASKS, render=None):
    translator = translator or Shouting()
    did = run_task(
        folder,
        number,
        job_of([str(text)], tasks, model),
        translator,
        inputs=[str(text)],
        tasks=tasks,
        render=render or (lambda number, translation: translation.text),
    )
    return did, translator.seen


def joined(folder):
    return b"".join(join_parts(folder)).decode()


def test_tasks_in_any_order_make_the_whole_and_are_not_done_twice(folder, text):
    for number in (2, 0, 3, 1):
        assert do(folder, text, number)[0]
    assert joined(folder) == "".join(f"{line.upper()}\n" for line in LINES)
    for number in range(TASKS):
        assert do(folder, text, number) == (False, [])


def test_missing_tasks_are_named(folder, text, tmp_path):
    with refused(TaskError, "no tasks"):
        joined(folder)
    do(folder, text, 2)
    assert unfinished(folder, TASKS) == [0, 1, 3]
    with refused(TaskError, "3 of 4 tasks", "0-1, 3."):
        joined(folder)


def test_a_task_that_is_killed_goes_on_where_it_was(tmp_path, text):
    folder = TaskFolder(str(tmp_path / "parts"))
    child = os.fork()
    if child == 0:
        do(folder, text, 1, Shouting(before=lambda chunk: chunk == 2 and os.kill(os.getpid(), signal.SIGKILL)))
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert unfinished(folder, TASKS) == [0, 1, 2, 3]
    _, left = do(folder, text, 1)
    _, all_of_it = do(TaskFolder(str(tmp_path / "others")), text, 1)
    assert left == all_of_it[2:] and left
    assert (tmp_path / "parts" / part_name(1)).read_bytes() == (tmp_path / "others" / part_name(1)).read_bytes()
    assert not list((tmp_path / "parts" / "unfinished").iterdir())


@pytest.mark.parametrize("name", ["put", "write"])
def test_task_interrupted_at_its_end_is_finished_without_repetition(folder, text, monkeypatch, name):
    def fail(*arguments):
        raise OSError("no room")

    folder.claim(job_of([str(text)], TASKS, MODEL))
    with monkeypatch.context() as patch:
        patch.setattr(folder, name, fail)
        with refused(OSError, "no room"):
            do(folder, text, 1)
    assert do(folder, text, 1) == (True, [])
    assert do(folder, text, 1) == (False, [])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": {**MODEL, "model": "other"}}, "model tiny other"),
        ({"model": {**MODEL, "--num-beams": 1}}, "--num-beams 4 1"),
        ({"tasks": 5}, "--tasks 4 5"),
    ],
)
def test_another_job_is_refused_by_name_and_nothing_is_touched(folder, text, changes, named):
    do(folder, text, 0)
    before = folder.names()
    with refused(TaskError, *named.split()):
        do(folder, text, 1, **changes)
    assert folder.names() == before


def test_another_input_is_refused_also_where_only_the_middle_differs(folder, text, tmp_path):
    do(folder, text, 0)
    changed = text.read_text().replace("line 1 ", "line X ")
    text.write_text(changed)
    with refused(TaskError, "another input"):
        do(folder, text, 1)
    large = tmp_path / "large"
    lines = [f"{number:09}" for number in range(30_000)]
    large.write_text("\n".join(lines) + "\n")
    other = TaskFolder(str(tmp_path / "large-parts"))
    translator = Shouting()
    translator.chunk_lines = 10_000
    do(other, large, 1, translator, tasks=3)
    lines[15_000] = "x" * 9
    large.write_text("\n".join(lines) + "\n")
    with refused(TaskError, "Task 1", "another input"):
        do(other, large, 1, tasks=3)


def test_a_part_that_was_changed_is_not_joined(folder, text):
    for number in range(TASKS):
        do(folder, text, number)
    filesystem, path = fsspec.url_to_fs(folder.url)
    content = filesystem.cat_file(f"{path}/{part_name(2)}")
    filesystem.pipe_file(f"{path}/{part_name(2)}", content.replace(b"L", b"M", 1))
    with refused(TaskError, "part-00002.txt"):
        joined(folder)


def test_numbers_of_an_nbest_list_count_the_lines_of_the_whole(folder, text):
    for number in range(TASKS):
        do(
            folder,
            text,
            number,
            model={**MODEL, "--nbest": 2},
            render=lambda number, translation: f"{number} ||| {translation.text} ||| 1\n{number} ||| b ||| 2",
        )
    numbers = [int(line.split(" ||| ")[0]) for line in joined(folder).splitlines()]
    assert numbers == [number for number in range(len(LINES)) for _ in range(2)]


def test_an_empty_input_and_parts_without_a_line_are_parts_too(tmp_path):
    (tmp_path / "in").write_text("one\n")
    folder = TaskFolder(str(tmp_path / "parts"))
    for number in range(3):
        assert do(folder, tmp_path / "in", number, tasks=3)[0]
    for number in range(3):
        assert not do(folder, tmp_path / "in", number, tasks=3)[0]
    assert joined(folder) == "ONE\n"
