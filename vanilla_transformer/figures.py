"""New matplotlib figures, which need no display."""

import os
import sys
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """Returns a figure of a size in inches, which no global list keeps alive and a notebook shows without pyplot."""
    if "matplotlib" not in sys.modules and (backend := os.environ.pop("MPLBACKEND", None)):
        _import_matplotlib(backend)
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            self.savefig(png := BytesIO(), format="png")
            return png.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def _import_matplotlib(backend: str) -> None:
    """Imports matplotlib with a backend for pyplot. If MPLBACKEND names an unknown one, its own import would fail."""
    try:
        import matplotlib
    finally:
        os.environ["MPLBACKEND"] = backend
    with suppress(ValueError):
        matplotlib.rcParams["backend"] = backend
