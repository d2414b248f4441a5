"""Pairs as streams of text with tables of any size."""

from collections.abc import Callable, Sequence
from itertools import chain

import pytest

from vanilla_transformer.data.text_streams import TextStream, row_tables


@pytest.fixture
def streamed() -> Callable[[Sequence[tuple[str, str]], int], TextStream]:
    """Makes a stream of pairs in tables of so many."""

    def streamed(pairs, size):
        starts = range(0, len(pairs), size)
        return TextStream(
            "pairs", lambda: chain.from_iterable(row_tables(iter(pairs[start : start + size])) for start in starts)
        )

    return streamed
