"""The documentation as a site, built once for all tests that look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder with the pages, which are built without a warning; their cells are not run.

    As in `make docs` the page on which a model computes is among them, here an empty one.
    """
    built, pages = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("pages")
    (pages / "explore").mkdir()
    (pages / "explore" / "index.html").touch()
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(built)]
    environment = {**os.environ, "DOCS_EXECUTION": "off", "DOCS_PAGES": str(pages)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built
