"""Figure 1 with a model's real sizes: stacks, sub-layers, and how many parameters each part has."""

from typing import TYPE_CHECKING

from vanilla_transformer.analysis.cost import count_parameters
from vanilla_transformer.inspection.plots import plot_position_similarity, plot_positions
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of figure 1.
_ATTENTION, _FEED_FORWARD, _NORM, _EMBEDDING, _OUTPUT = "#fbe0bb", "#c5e7f5", "#f1f3c0", "#f9dfe0", "#dcdff0"
_WIDTH, _GAP = 3.0, 1.4


def plot_model(config: VanillaTransformerBaseConfig, title: str = "") -> "Figure":
    """A picture of a model: figure 1 with its sizes, parameters by part, and section 3.5's encodings.

    Learned positions are weights and do not follow from sizes: they are named and not drawn.
    """
    from matplotlib.figure import Figure

    sinusoidal = config.positional_encoding == "sinusoidal"
    figure = Figure(figsize=(13 if sinusoidal else 8, 8), layout="constrained")
    grid = figure.add_gridspec(4, 3 if sinusoidal else 2, width_ratios=[4, 1, 4][: 3 if sinusoidal else 2])
    plot_architecture(config, figure.add_subplot(grid[:3, :2]))
    plot_parameters(config, figure.add_subplot(grid[3, :2]))
    if sinusoidal:
        plot_positions(config, axes=figure.add_subplot(grid[:2, 2]))
        plot_position_similarity(config, axes=figure.add_subplot(grid[2:, 2]))
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def plot_parameters(config: VanillaTransformerBaseConfig, axes: "Axes") -> "Axes":
    """How many parameters each part has, as bars."""
    counts = {name: count for name, count in count_parameters(config).items() if count and name != "total"}
    total = sum(counts.values())
    names = [_in_words(name) for name in counts]
    axes.barh(names, [count / 1e6 for count in counts.values()], color="#5b84b1")
    for row, count in enumerate(counts.values()):
        axes.text(count / 1e6, row, f" {count:,}, {count / total:.0%}", va="center", fontsize=7)
    axes.set_xlim(0, max(counts.values()) / 1e6 * 1.3)
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.set_xlabel("millions", fontsize=8)
    axes.set_title(f"parameters: {total:,}", fontsize=9)
    return axes


def plot_architecture(config: VanillaTransformerBaseConfig, axes: "Axes") -> "Axes":
    """Section 3, figure 1: the stacks from bottom to top, with layers, heads and widths."""
    stacks = [name for name in ("encoder", "decoder") if hasattr(config, f"{name}_layers")]
    tops = []
    for column, stack in enumerate(stacks):
        tops.append(_draw_stack(axes, config, stack, column * (_WIDTH + _GAP), joined=len(stacks) == 2))
    if len(stacks) == 2:
        # From the top of the encoder into the decoder's second sub-layer, as its keys and values.
        across = _WIDTH + _GAP / 2
        target = tops[1]["cross"]
        axes.plot(
            [_WIDTH / 2, _WIDTH / 2, across, across],
            [tops[0]["top"], tops[0]["top"] + 0.35, tops[0]["top"] + 0.35, target],
            color="black",
            linewidth=1,
        )
        _arrow(axes, across, target, _WIDTH + _GAP, target)
    axes.set_xlim(-0.8, len(stacks) * (_WIDTH + _GAP) - _GAP + 0.8)
    axes.set_ylim(-0.2, max(top["end"] for top in tops) + 0.3)
    axes.set_axis_off()
    return axes


def _draw_stack(
    axes: "Axes", config: VanillaTransformerBaseConfig, stack: str, left: float, *, joined: bool
) -> dict[str, float]:
    """Draws one column, and says how high its top, its second sub-layer and its end are."""
    layers = getattr(config, f"{stack}_layers")
    heads = f"{config.num_heads} heads, d_k = {config.d_k}, d_v = {config.d_v}"
    writes = stack == "decoder" or not joined
    places: dict[str, float] = {}
    height = _box(axes, left, 0, 0.6, _EMBEDDING, f"Embedding\n{config.vocab_size:,} × {config.d_model}")
    height = _box(axes, left, height, 0.45, "white", f"+ {config.positional_encoding} positions", rounded=True)
    bottom = height - 0.1
    attention = "Masked Multi-Head Attention" if stack == "decoder" else "Multi-Head Attention"
    height = _box(axes, left, height + 0.1, 0.6, _ATTENTION, f"{attention}\n{heads}")
    height = _box(axes, left, height, 0.35, _NORM, "Add & Norm")
    if stack == "decoder" and joined:
        places["cross"] = height + 0.3
        height = _box(axes, left, height, 0.6, _ATTENTION, f"Multi-Head Cross-Attention\n{heads}")
        height = _box(axes, left, height, 0.35, _NORM, "Add & Norm")
    wide = f"Feed Forward, {config.activation_function}\n{config.d_model} → {config.d_ff:,} → {config.d_model}"
    height = _box(axes, left, height, 0.6, _FEED_FORWARD, wide)
    height = _box(axes, left, height, 0.35, _NORM, "Add & Norm", arrow=False)
    _frame(axes, left - 0.15, bottom, height - bottom)
    side, alignment = (left + _WIDTH + 0.25, "left") if left else (left - 0.25, "right")
    axes.text(side, (bottom + height) / 2, f"{layers}×", ha=alignment, va="center", fontsize=12)
    axes.text(left + _WIDTH / 2, -0.1, stack, ha="center", va="top", fontsize=9)
    places["top"] = places["end"] = height
    if writes:
        _arrow(axes, left + _WIDTH / 2, height - 0.15, left + _WIDTH / 2, height + 0.25)
        places["end"] = _box(axes, left, height + 0.25, 0.6, _OUTPUT, _output(config), arrow=False)
    return places


def _output(config: VanillaTransformerBaseConfig) -> str:
    if "classifier" in count_parameters(config):
        return f"Classifier\n{config.d_model} → {config.num_labels}"
    word = "Linear, the embedding again" if config.tie_word_embeddings else "Linear"
    return f"{word}\n{config.d_model} → {config.vocab_size:,}"


def _box(
    axes: "Axes",
    left: float,
    bottom: float,
    height: float,
    colour: str,
    text: str,
    *,
    arrow: bool = True,
    rounded: bool = False,
) -> float:
    """A box with text and an arrow out of its top; the height at which the next one stands."""
    from matplotlib.patches import FancyBboxPatch

    style = f"round,pad=0,rounding_size={0.2 if rounded else 0.08}"
    axes.add_patch(FancyBboxPatch((left, bottom), _WIDTH, height, style, facecolor=colour, edgecolor="black"))
    axes.text(left + _WIDTH / 2, bottom + height / 2, text, ha="center", va="center", fontsize=8)
    if arrow:
        _arrow(axes, left + _WIDTH / 2, bottom + height, left + _WIDTH / 2, bottom + height + 0.2)
    return bottom + height + 0.2


def _frame(axes: "Axes", left: float, bottom: float, height: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.2"
    size = _WIDTH + 0.3, height
    axes.add_patch(FancyBboxPatch((left, bottom), *size, style, facecolor="#f3f3f4", edgecolor="#777777", zorder=0))


def _arrow(axes: "Axes", x: float, y: float, to_x: float, to_y: float) -> None:
    axes.annotate("", (to_x, to_y), (x, y), arrowprops={"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0})


def _in_words(part: str) -> str:
    return part.replace("_attention", "-attention").replace("feed_", "feed-").replace("_", " ")
