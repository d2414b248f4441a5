"""Figures are drawn without a display, and whatever backend MPLBACKEND names."""

import subprocess
import sys

import pytest

CODE = """
import os, sys
from vanilla_transformer.figures import new_figure
assert new_figure(2, 2)._repr_png_().startswith(b"\\x89PNG")
assert os.environ["MPLBACKEND"] == sys.argv[1] and "matplotlib.pyplot" not in sys.modules
from matplotlib import get_backend
assert str(get_backend(auto_select=False)) == sys.argv[2]
"""


@pytest.mark.parametrize(("backend", "used"), [("Qt4Agg", "None"), ("svg", "svg")])
def test_a_figure_needs_no_backend_and_leaves_that_of_a_program_as_it_is(monkeypatch, backend, used):
    monkeypatch.setenv("MPLBACKEND", backend)
    subprocess.run([sys.executable, "-c", CODE, backend, used], check=True)
