"""Numbered tasks of a translation: each reads its part of the input and writes one file, independently.

A folder holds their results: `job.json`, the job to which all tasks must belong, `part-00017.txt`, and
`part-00017.json`, which is written last and describes the input of the part. A finished task is skipped, an
interrupted one continues where it stopped, and one of another job is refused.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from vanilla_transformer.extras.many_machines.folder import JOB, TaskError, TaskFolder, in_ranges, job_digest
from vanilla_transformer.extras.many_machines.parts import cut, identity, read_part
from vanilla_transformer.extras.resuming.chunk_reader import ChunkReader, process_file
from vanilla_transformer.extras.resuming.resumable_file import ResumableFile, record_path
from vanilla_transformer.translation.lines import Translation, Translator

_SLICE = 1 << 20


def part_name(number: int) -> str:
    """Returns the name of a task's file."""
    return f"part-{number:05d}.txt"


def _record_name(number: int) -> str:
    return f"part-{number:05d}.json"


def job_of(inputs: Sequence[str], tasks: int, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that all tasks of a job share, by their names in messages.

    Args:
        fingerprint: The model and settings on which translations depend, besides the input.
    """
    return {**fingerprint, "input": {path: identity(path) for path in inputs}, "number of --tasks": tasks}


def run_task(
    folder: TaskFolder,
    number: int,
    job: dict[str, Any],
    translator: Translator,
    *,
    inputs: Sequence[str],
    tasks: int,
    column: str | None = None,
    render: Callable[[int, Translation], str],
    progress: Callable[[int], object] = lambda lines: None,
    warn: Callable[[str], object] = lambda message: None,
) -> bool:
    """Runs a task, unless it is done; returns True if there was something to do.

    Raises:
        TaskError: The folder holds another job, or the task was done from another input.
        OSError, ValueError: The input cannot be read, or the result cannot be written.
    """
    folder.claim(job)
    part = cut(inputs, tasks)[number]
    if _is_done(folder, number, lambda: read_part(part, column)):
        return False
    working = folder.workplace(part_name(number))
    with ResumableFile(working, {**job, "task": number}, resume=True) as output:
        # Another process may have finished the task in the meantime, and its working file is gone.
        if not output.state.chunks and _is_done(folder, number, lambda: read_part(part, column)):
            working.unlink()
            return False
        reader = ChunkReader(read_part(part, column), output.state.chunk_lines or translator.chunk_lines)
        reader.skip(output.state)
        if not output.state.finished:
            output.begin(reader.size)
            process_file(translator.translate, reader, output, render=render, progress=progress, warn=warn)
        state = output.state
        folder.put(working, part_name(number))
        folder.write(
            _record_name(number),
            {
                **{name: getattr(state, name) for name in ("lines", "size", "source", "translation")},
                "job": job_digest(job),
            },
        )
        record_path(working).unlink()
        working.unlink()
    return True


def _is_done(folder: TaskFolder, number: int, lines: Callable[[], Iterable[str]]) -> bool:
    """Returns True if a task is done; raises TaskError if it was done from other lines."""
    record = folder.read(_record_name(number))
    if record is None or folder.size(part_name(number)) != record["size"]:
        return False
    digest, count = hashlib.blake2b(digest_size=16), 0
    for line in lines():
        digest.update(line.encode() + b"\n")
        count += 1
    if count != record["lines"] or (count and digest.hexdigest() != record["source"]):
        raise TaskError(
            f"Task {number} of {folder.url} is done, but was made from another input: restore that input, or "
            "name another directory."
        )
    return True


def unfinished(folder: TaskFolder, tasks: int) -> list[int]:
    """Lists the tasks that have no record yet."""
    there = folder.names()
    return [number for number in range(tasks) if not {_record_name(number), part_name(number)} <= there]


def join_parts(folder: TaskFolder) -> Iterator[bytes]:
    """Yields all parts in order, in slices; each is compared with its record.

    Raises:
        TaskError: There is no job, some of its tasks are missing, or a part has changed.
    """
    job = folder.read(JOB)
    if job is None:
        raise TaskError(f"{folder.url} holds no tasks: name the directory that `translate --tasks` has written to.")
    tasks = job["number of --tasks"]
    missing = unfinished(folder, tasks)
    if missing:
        raise TaskError(
            f"{len(missing):,} of {tasks:,} tasks in {folder.url} are missing: {in_ranges(missing)}. Run the "
            "command that began them again, or with --task for a single one."
        )
    yield from _joined(folder, tasks, job_digest(job), numbered=bool(job.get("--nbest")))


def _joined(folder: TaskFolder, tasks: int, job: str, *, numbered: bool) -> Iterator[bytes]:
    lines = 0
    for number in range(tasks):
        record = folder.read(_record_name(number)) or {}
        if record.get("job") != job:
            raise TaskError(
                f"Part {number} in {folder.url} belongs to another job: delete it, and run task {number} again."
            )
        digest = hashlib.blake2b(digest_size=16)
        with folder.open(part_name(number)) as file:
            for piece in iter(lambda: file.readlines(_SLICE), []):
                content = b"".join(piece)
                digest.update(content)
                yield b"".join(_renumbered(line, lines) for line in piece) if numbered and lines else content
        if record["size"] and digest.hexdigest() != record["translation"]:
            raise TaskError(
                f"{part_name(number)} in {folder.url} is not what its task has written: delete it, and run "
                f"task {number} again."
            )
        lines += record["lines"]


def _renumbered(line: bytes, before: int) -> bytes:
    """Renumbers a line of a part's n-best list for the whole list."""
    number, rest = line.split(b" ||| ", 1)
    return b"%d ||| %s" % (int(number) + before, rest)
