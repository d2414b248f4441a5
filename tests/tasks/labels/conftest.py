"""Fixtures of the tests of classifiers and taggers."""

from pathlib import Path

import pytest
from small_tasks import labelled, lines, masked_lines, stopped, tagged, train_each

__all__ = ["labelled", "lines", "masked_lines", "stopped", "tagged"]


@pytest.fixture(scope="session")
def trained(labelled, tagged, masked_lines, tmp_path_factory) -> dict[str, Path]:  # noqa: F811
    """A model of each."""
    directory = tmp_path_factory.mktemp("models")
    return train_each(directory, labelled=labelled, tagged=tagged, masked_lines=masked_lines)
