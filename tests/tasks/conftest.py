"""Fixtures of the tests of language models."""

from pathlib import Path

import pytest
from small_tasks import lines, masked_lines, stopped, train_each

__all__ = ["lines", "masked_lines", "stopped"]


@pytest.fixture(scope="session")
def trained(lines, masked_lines, tmp_path_factory) -> dict[str, Path]:  # noqa: F811
    """A model of each."""
    return train_each(tmp_path_factory.mktemp("models"), lines=lines, masked_lines=masked_lines)
