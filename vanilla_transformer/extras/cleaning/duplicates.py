"""Repeated texts, found in memory that does not grow with the corpus."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from vanilla_transformer.atomic_files import named_when_full

# Hashes are compared in this many portions: one portion of a billion texts takes 0.4 GB.
_PORTIONS = 64
# Bytes of a portion that are collected before they are written.
_BUFFER = 1 << 12


class Duplicates:
    """Finds repeated texts by hashes, which lie in temporary files until they are compared."""

    def __init__(self) -> None:
        self._stack, self._lines = ExitStack(), [bytearray() for _ in range(_PORTIONS)]

    def __enter__(self) -> "Duplicates":
        opened = (tempfile.TemporaryFile() for _ in range(_PORTIONS))  # noqa: SIM115  the stack closes them
        self._files: list[Any] = [self._stack.enter_context(file) for file in opened]
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # Unwritten data is no longer needed.
            self._stack.close()

    def add(self, number: int, texts: Sequence[str]) -> None:
        """Adds a line; texts that differ only in white space are the same."""
        text = "\n".join(" ".join(one.split()) for one in texts)
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        number_of_portion = digest[0] % _PORTIONS
        portion = self._lines[number_of_portion]
        portion += digest + number.to_bytes(8, "little")
        if len(portion) >= _BUFFER:
            _write(self._files[number_of_portion], portion)
            portion.clear()

    def positions(self) -> Iterator[int]:
        """Yields the numbers of all lines except the first of each text."""
        kind = np.dtype([("first", "<u8"), ("second", "<u8"), ("line", "<u8")])
        for file, rest in zip(self._files, self._lines, strict=True):
            _write(file, rest)
            file.seek(0)
            lines = np.frombuffer(file.read(), dtype=kind)
            lines = lines[np.lexsort((lines["line"], lines["second"], lines["first"]))]
            same = (lines["first"][1:] == lines["first"][:-1]) & (lines["second"][1:] == lines["second"][:-1])
            yield from lines["line"][1:][same].tolist()


def _write(file: Any, portion: bytes | bytearray) -> None:
    place = Path(tempfile.gettempdir())  # The file itself has no name.
    with named_when_full(place, place):
        file.write(portion)
        file.flush()
