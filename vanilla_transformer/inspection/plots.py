"""Attention as matplotlib figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from vanilla_transformer.figures import new_figure
from vanilla_transformer.inspection.recording import TITLES, Attention, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# The colours of weights from 0 to the largest: those of the light page that `explore` writes, and of `attend`'s.
PALETTE = ("#f4f3ef", "#8fc0c4", "#0d4f66")
# Weights below this would be drawn as invisible lines.
_FAINTEST = 0.02
# Inches: the space of a page for a grid of heads.
_PAGE_WIDTH, _PAGE_HEIGHT = 7.5, 9.0
# Letters of a word that fit above one another's columns; longer words slant.
_LEVEL = 4


def plot_attention(
    attention: Attention,
    kind: Kind = "cross",
    layer: int | Literal["mean"] = -1,
    head: int | Literal["mean"] = "mean",
    view: Literal["heatmap", "lines"] = "heatmap",
    axes: "Axes | None" = None,
) -> "Figure":
    """Plots one layer's attention, as a heat map or as lines between two columns of words as in figures 3 to 5.

    A notebook shows the figure that a cell ends with.

    Args:
        attention: The result of `vanilla_transformer.inspection.attention()`, or its `words()`.
        kind: `encoder` (self-attention), `decoder` (self-attention) or `cross`.
        layer: Counted from 1, -1 for the last, or the `mean` of all.
        head: Counted from 1, or the `mean` of all; `plot_heads` shows all side by side.
        view: `heatmap` or `lines`.
        axes: The axes to draw on (default: those of a new figure).

    Raises:
        ModelError: There is no such layer or head.
    """
    weights = attention.select(kind, layer, head).numpy()
    queries, keys = attention.queries(kind).texts, attention.keys(kind).texts
    layers, heads_there = attention.weights[kind].shape[:2]
    title = f"{TITLES[kind]}, {_named('layer', layer, layers)}, {_named('head', head, heads_there)}"
    if view == "heatmap":
        axes = axes or new_figure(max(4.5, 2.5 + 0.35 * len(keys)), 1.8 + 0.3 * len(queries)).subplots()
        image = _heatmap(axes, weights, queries, keys, 8, float(weights.max()))
        attending, attended = attention.sides(kind)
        axes.set_ylabel(f"queries: {attending}")
        axes.set_xlabel(f"keys: {attended}")
        axes.figure.colorbar(image, ax=axes, label="attention weight")
    else:
        axes = axes or new_figure(4.5, 1 + 0.28 * max(len(queries), len(keys))).subplots()
        _lines(axes, weights, queries, keys, attention.sides(kind))
    axes.set_title(title, fontsize=9)
    return cast("Figure", axes.figure)


def plot_heads(attention: Attention, kind: Kind = "cross", layer: int | Literal["mean"] = -1) -> "Figure":
    """Plots each head of a layer by itself, as heat maps on one scale, in a grid that fits a page."""
    attention.select(kind, layer, "mean")  # Refuses a missing layer or kind.
    layers, heads = attention.weights[kind].shape[:2]
    queries, keys = attention.queries(kind).texts, attention.keys(kind).texts
    across, down = len(keys), len(queries)
    columns = min(heads, 4 if heads > 4 else 2)
    rows = -(-heads // columns)
    cell = min(0.2, (_PAGE_WIDTH - 1.5) / (columns * across), (_PAGE_HEIGHT - 1.5) / (rows * down))
    width, height = 1.5 + columns * (cell * across + 0.15), 1.5 + rows * (cell * down + 0.3)
    figure = new_figure(max(4.0, width), max(2.5, height))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    matrices = [attention.select(kind, layer, head).numpy() for head in range(1, heads + 1)]
    strongest = max(float(weights.max()) for weights in matrices)
    attending, attended = attention.sides(kind)
    for axes in grid.flat[heads:]:
        axes.set_axis_off()
    for head, (axes, weights) in enumerate(zip(grid.flat, matrices, strict=False), 1):
        axes.set_title(f"head {head}", fontsize=8)
        image = _heatmap(axes, weights, queries, keys, max(3.0, min(7.0, 60 * cell)), strongest)
    figure.supylabel(f"queries: {attending}", fontsize=9)
    figure.supxlabel(f"keys: {attended}", fontsize=9)
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.6)
    figure.suptitle(f"{TITLES[kind]}, {_named('layer', layer, layers)}", fontsize=9)
    return figure


def _named(what: str, number: int | str, count: int) -> str:
    """Names `layer 6`, counted from 1, or `mean of layers`."""
    if isinstance(number, str):
        return f"mean of {what}s"
    return f"{what} {number if number > 0 else count + 1 + number}"


def _heatmap(
    axes: "Axes",
    weights: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    fontsize: float,
    strongest: float,
) -> "AxesImage":
    """Draws weights as colours from 0 to the strongest."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("weights", PALETTE)
    image = axes.imshow(weights, cmap=colours, vmin=0, vmax=strongest, aspect="auto", interpolation="nearest")
    slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    style: dict[str, Any] = {"fontsize": fontsize, "parse_math": False}
    axes.set_xticks(range(len(keys)), keys, **style, **(slant if max(map(len, keys)) > _LEVEL else {}))
    axes.set_yticks(range(len(queries)), queries, **style)
    return image


def _lines(
    axes: "Axes", weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], sides: tuple[str, str]
) -> None:
    for query, key in zip(*np.nonzero(weights >= _FAINTEST), strict=True):
        alpha = min(float(weights[query, key]), 1)
        axes.plot([0, 1], [query, key], color=PALETTE[-1], alpha=alpha, linewidth=2, solid_capstyle="round")
    for place, texts, alignment, side in ((-0.03, queries, "right", sides[0]), (1.03, keys, "left", sides[1])):
        axes.text(place, -0.9, side, ha=alignment, va="center", fontsize=8, color="#666666")
        for row, text in enumerate(texts):
            axes.text(place, row, text, ha=alignment, va="center", fontsize=9, parse_math=False)
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(max(len(queries), len(keys)) - 0.5, -1.3)
    axes.set_axis_off()
