"""Figure 1 with a model's real sizes: stacks, sub-layers, and the number of parameters of each part."""

from typing import TYPE_CHECKING

from vanilla_transformer.extras.inspection.parameters import count_parameters
from vanilla_transformer.extras.inspection.plots import new_axes, plot_position_similarity, plot_positions
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of figure 1.
_ATTENTION, _FEED_FORWARD, _NORM, _EMBEDDING, _OUTPUT = "#fbe0bb", "#c5e7f5", "#f1f3c0", "#f9dfe0", "#dcdff0"
_SOFTMAX = "#cfe8d5"
_WIDTH, _GAP, _ARROW = 3.0, 1.6, 0.22


def plot_model(config: VanillaTransformerBaseConfig, title: str = "") -> "Figure":
    """Draws a model: figure 1 with its sizes, its parameters by part, and the positional encodings of section 3.5.

    Learned positions are weights and do not follow from the sizes: they are named but not drawn.
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
    """Plots the number of parameters of each part as bars."""
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


def plot_architecture(config: VanillaTransformerBaseConfig, axes: "Axes | None" = None) -> "Axes":
    """Section 3, figure 1: draws the stacks bottom to top, with residual connections, layers, heads and widths."""
    axes = axes or new_axes(7, 7)
    stacks = [name for name in ("encoder", "decoder") if hasattr(config, f"{name}_layers")]
    joined = len(stacks) == 2
    columns = [_Column(axes, column * (_WIDTH + _GAP)) for column in range(len(stacks))]
    for stack, column in zip(stacks, columns, strict=True):
        _draw_stack(column, config, stack, joined=joined)
    if joined:
        # From the top of the encoder into the decoder's second sub-layer, as its keys and values.
        across, top, into = _WIDTH + 0.45, columns[0].height + 0.3, columns[1].keys_and_values
        _path(
            axes,
            (_WIDTH / 2, columns[0].height),
            (_WIDTH / 2, top),
            (across, top),
            (across, into),
            (_WIDTH + _GAP, into),
        )
        axes.text(_WIDTH + 0.5, into + 0.06, "K, V", fontsize=7, va="bottom")
    axes.set_xlim(-1.1, len(stacks) * (_WIDTH + _GAP) - _GAP + 1.1)
    axes.set_ylim(-0.75, max(column.height for column in columns) + 0.45)
    axes.set_axis_off()
    return axes


def _draw_stack(column: "_Column", config: VanillaTransformerBaseConfig, stack: str, *, joined: bool) -> None:
    heads = f"{config.num_heads} heads, d_k = {config.d_k}, d_v = {config.d_v}"
    reads = {"encoder": "inputs", "decoder": "outputs (shifted right)"} if joined else dict.fromkeys([stack], "text")
    column.label(reads[stack])
    column.box(0.6, _EMBEDDING, f"Embedding, times √{config.d_model}\n{config.vocab_size:,} × {config.d_model}")
    column.box(0.45, "white", f"+ {config.positional_encoding} positions", rounded=True, arrow=0.45)
    bottom = column.height - 0.38
    masked = "Masked " if stack == "decoder" else ""
    column.residual(_ATTENTION, f"{masked}Multi-Head Attention\n{heads}")
    if stack == "decoder" and joined:
        column.keys_and_values = column.height + 0.3
        column.residual(_ATTENTION, f"Multi-Head Cross-Attention\n{heads}")
    wide = f"Feed Forward, {config.activation_function}\n{config.d_model} → {config.d_ff:,} → {config.d_model}"
    column.residual(_FEED_FORWARD, wide, arrow=0)
    column.frame(bottom, f"{getattr(config, f'{stack}_layers')}×", stack)
    if stack == "decoder" or not joined:
        column.arrow(0.32)
        classifies = "classifier" in count_parameters(config)
        column.box(0.6, _OUTPUT, _output(config), arrow=0 if classifies else _ARROW)
        if not classifies:
            column.box(0.35, _SOFTMAX, "Softmax")
            column.label("output probabilities")


def _output(config: VanillaTransformerBaseConfig) -> str:
    if "classifier" in count_parameters(config):
        return f"Classifier\n{config.d_model} → {config.num_labels}"
    word = "Linear, the embedding again" if config.tie_word_embeddings else "Linear"
    return f"{word}\n{config.d_model} → {config.vocab_size:,}"


class _Column:
    """A stack that is drawn upwards, box by box, with an arrow out of the top of each box."""

    def __init__(self, axes: "Axes", left: float) -> None:
        self.axes, self.left, self.middle = axes, left, left + _WIDTH / 2
        self.height = 0.0
        self.keys_and_values = 0.0

    def label(self, text: str) -> None:
        """Writes the text that goes into the first box, or comes out of the last one."""
        if self.height:
            self.axes.text(self.middle, self.height + 0.05, text, ha="center", va="bottom", fontsize=8)
        else:
            self.axes.text(self.middle, -0.38, text, ha="center", va="top", fontsize=8)
            _path(self.axes, (self.middle, -0.35), (self.middle, 0))

    def arrow(self, length: float) -> None:
        _path(self.axes, (self.middle, self.height), (self.middle, self.height + length))
        self.height += length

    def box(self, height: float, colour: str, text: str, *, arrow: float = _ARROW, rounded: bool = False) -> None:
        from matplotlib.patches import FancyBboxPatch

        style = f"round,pad=0,rounding_size={0.2 if rounded else 0.08}"
        place = self.left, self.height
        self.axes.add_patch(FancyBboxPatch(place, _WIDTH, height, style, facecolor=colour, edgecolor="black"))
        self.axes.text(self.middle, self.height + height / 2, text, ha="center", va="center", fontsize=8)
        self.height += height
        if arrow:
            self.arrow(arrow)

    def residual(self, colour: str, text: str, *, arrow: float = _ARROW) -> None:
        """Draws a sub-layer, and the connection around it into Add & Norm."""
        # In the decoder the connection is on the right, the side where no keys and values come in.
        side, away = (self.left, -0.3) if self.left == 0 else (self.left + _WIDTH, 0.3)
        before = self.height - 0.17
        self.box(0.6, colour, text)
        into = self.height + 0.175
        _path(self.axes, (self.middle, before), (side + away, before), (side + away, into), (side, into))
        self.box(0.35, _NORM, "Add & Norm", arrow=arrow)

    def frame(self, bottom: float, layers: str, stack: str) -> None:
        """Draws the border around one layer, with the number of layers beside it."""
        from matplotlib.patches import FancyBboxPatch

        style, size = "round,pad=0,rounding_size=0.2", (_WIDTH + 0.8, self.height - bottom + 0.1)
        shape = FancyBboxPatch(
            (self.left - 0.4, bottom), *size, style, facecolor="#f3f3f4", edgecolor="#777777", zorder=0
        )
        self.axes.add_patch(shape)
        side, alignment = (self.left - 0.5, "right") if self.left == 0 else (self.left + _WIDTH + 0.5, "left")
        height = bottom + size[1] / 2
        self.axes.text(side, height, layers, ha=alignment, va="center", fontsize=12)
        self.axes.text(side, height - 0.3, stack, ha=alignment, va="center", fontsize=8)


def _path(axes: "Axes", *points: tuple[float, float]) -> None:
    """Draws a line through points that ends as an arrow."""
    axes.plot(*zip(*points, strict=True), color="black", linewidth=1)
    axes.annotate("", points[-1], points[-2], arrowprops={"arrowstyle": "->", "shrinkA": 0, "shrinkB": 0})


def _in_words(part: str) -> str:
    return part.replace("_attention", "-attention").replace("feed_", "feed-").replace("_", " ")
