"""Attention, positions and the learning rate as matplotlib axes."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from vanilla_transformer.inspection.recording import TITLES, Attention, InspectionError, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig

# Lines thinner than this cannot be seen.
_FAINTEST = 0.02


def plot_attention(
    attention: Attention,
    kind: Kind = "cross",
    layer: int | Literal["mean"] = -1,
    head: int | Literal["mean", "all"] = "mean",
    view: Literal["heatmap", "lines"] = "heatmap",
    axes: "Axes | None" = None,
) -> "Axes":
    """One layer's attention: a heat map, or the words in two columns with lines between them as in figures 3 to 5.

    Args:
        attention: What `vanilla_transformer.inspection.attention()` returned, or its `words()`.
        kind: `encoder` (self-attention), `decoder` (self-attention) or `cross`.
        layer: Counted from 0, -1 for the last, or the `mean` of all.
        head: Counted from 0, or the `mean` of all; `all` gives each a colour of its own, for lines alone.
        view: `heatmap` or `lines`.
        axes: Where to draw; new axes where not given.

    Raises:
        InspectionError: There is no such layer or head.
    """
    attention.check(kind)
    queries, keys = attention.queries(kind).texts, attention.keys(kind).texts
    if view == "heatmap":
        if head == "all":
            raise InspectionError("A heat map shows one head or the mean: head='all' is for view='lines'.")
        weights = attention.select(kind, layer, head)
        axes = axes or _new_axes(*_size(queries, keys, 0.3))
        _heatmap(axes, weights.numpy(), queries, keys)
    else:
        axes = axes or _new_axes(4.5, 1 + 0.28 * max(len(queries), len(keys)))
        heads = range(attention.weights[kind].shape[1]) if head == "all" else [head]
        _lines(axes, [attention.select(kind, layer, one).numpy() for one in heads], queries, keys)
    layers, heads_there = attention.weights[kind].shape[:2]
    named = "all heads" if head == "all" else _named("head", head, heads_there)
    axes.set_title(f"{TITLES[kind]}, {_named('layer', layer, layers)}, {named}", fontsize=9)
    return axes


def plot_heads(attention: Attention, kind: Kind = "cross", layer: int | Literal["mean"] = -1) -> "np.ndarray":
    """All heads of a layer as small heat maps; returns their axes."""
    from matplotlib.figure import Figure

    attention.select(kind, layer, "mean")  # Refuses what is not there.
    heads = attention.weights[kind].shape[1]
    columns = min(4, heads)
    rows = -(-heads // columns)
    queries, keys = attention.queries(kind).texts, attention.keys(kind).texts
    width, height = _size(queries, keys, 0.2)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for head, axes in enumerate(grid.flat):
        if head < heads:
            _heatmap(axes, attention.select(kind, layer, head).numpy(), queries, keys, fontsize=6)
            axes.set_title(f"head {head}", fontsize=8)
        else:
            axes.set_axis_off()
    figure.suptitle(f"{TITLES[kind]}, {_named('layer', layer, len(attention.weights[kind]))}", fontsize=9)
    return grid


def plot_positions(config: "VanillaTransformerBaseConfig", positions: int = 100, axes: "Axes | None" = None) -> "Axes":
    """Section 3.5: the encoding of each position as a heat map, (dimensions across, positions down)."""
    axes = axes or _new_axes(7, 4)
    image = axes.imshow(_encodings(config, positions), cmap="RdBu", aspect="auto", interpolation="nearest")
    axes.set_xlabel("dimension: sine on even, cosine on odd ones")
    axes.set_ylabel("position")
    axes.set_title(f"positional encoding, d_model = {config.d_model}", fontsize=9)
    axes.figure.colorbar(image, ax=axes)
    return axes


def plot_position_similarity(
    config: "VanillaTransformerBaseConfig", positions: int = 100, axes: "Axes | None" = None
) -> "Axes":
    """The dot product of each two positions' encodings: with sinusoids it follows from their distance alone."""
    axes = axes or _new_axes(5, 4)
    encodings = _encodings(config, positions)
    image = axes.imshow(encodings @ encodings.T, cmap="viridis", interpolation="nearest")
    axes.set_xlabel("position")
    axes.set_ylabel("position")
    axes.set_title("dot product of positional encodings", fontsize=9)
    axes.figure.colorbar(image, ax=axes)
    return axes


def plot_learning_rate(
    d_model: int = 512, warmup_steps: int = 4000, steps: int = 100_000, scale: float = 1.0, axes: "Axes | None" = None
) -> "Axes":
    """Section 5.3, Eq. 3: a linear rise over the warm-up, then a fall with the root of the step."""
    from vanilla_transformer.analysis.learning_rate import paper_learning_rate

    axes = axes or _new_axes(6, 3)
    at = np.unique(np.linspace(1, steps, num=min(steps, 1000)).round().astype(int))
    axes.plot(at, [paper_learning_rate(int(step), d_model, warmup_steps, scale) for step in at])
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_title(f"Eq. 3, d_model = {d_model}, warm-up of {warmup_steps:,} steps", fontsize=9)
    axes.grid(visible=True, alpha=0.3)
    return axes


def _named(what: str, number: int | str, count: int) -> str:
    """`layer 5`, counted from 0, or `mean of layers`."""
    return f"mean of {what}s" if isinstance(number, str) else f"{what} {number % count}"


def _encodings(config: "VanillaTransformerBaseConfig", positions: int) -> np.ndarray:
    from vanilla_transformer.model.layers import PositionalEncoding

    if config.positional_encoding != "sinusoidal":
        raise InspectionError("Learned positions are weights of a model: only sinusoidal ones follow from its sizes.")
    with torch.no_grad():
        return PositionalEncoding(config)(positions).numpy()


def _new_axes(width: float, height: float) -> "Axes":
    """Axes of a figure of their own, which no global list of figures keeps alive."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").subplots()


def _size(queries: tuple[str, ...], keys: tuple[str, ...], cell: float) -> tuple[float, float]:
    """Inches for a heat map of such cells with its words beside it."""
    letter = cell / 3
    width, height = (1 + letter * max(map(len, texts)) for texts in (queries, keys))
    return width + cell * len(keys), height + cell * len(queries)


def _shown(text: str) -> str:
    """The text as matplotlib takes it: a dollar sign begins a formula, and control characters have no shape."""
    return "".join(character if character.isprintable() else "·" for character in text).replace("$", r"\$")


def _heatmap(
    axes: "Axes", weights: np.ndarray, queries: tuple[str, ...], keys: tuple[str, ...], fontsize: int = 8
) -> None:
    axes.imshow(weights, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(keys)), [_shown(key) for key in keys], rotation=90, fontsize=fontsize)
    axes.set_yticks(range(len(queries)), [_shown(query) for query in queries], fontsize=fontsize)


def _lines(axes: "Axes", heads: list[np.ndarray], queries: tuple[str, ...], keys: tuple[str, ...]) -> None:
    from matplotlib import colormaps

    colours = colormaps["tab10"](range(10))
    for number, weights in enumerate(heads):
        for query, key in zip(*np.nonzero(weights >= _FAINTEST), strict=True):
            colour = colours[number % len(colours)]
            alpha = float(weights[query, key]) / (1 if len(heads) == 1 else 1.5)
            axes.plot([0, 1], [query, key], color=colour, alpha=min(alpha, 1), linewidth=2, solid_capstyle="round")
    for place, texts, alignment in ((-0.03, queries, "right"), (1.03, keys, "left")):
        for row, text in enumerate(texts):
            axes.text(place, row, _shown(text), ha=alignment, va="center", fontsize=9)
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(max(len(queries), len(keys)) - 0.5, -0.5)
    axes.set_axis_off()
