"""Section 4 and Table 1, measured: the cost of four kinds of layers by sentence length n and width d.

    python -m scripts.experiments.table1 --output table1

Self-attention is this package's, restricted self-attention the same with a window mask; recurrence and convolution are
torch's own. The directory gets, for each layer, the paper's formula beside counts from the real layer (operations, the
longest chain of products, the longest path between two positions), and the time and memory of a forward and backward
pass on this machine (processor time if on one thread): `table1.md`, `table1.json` and `table1.png`.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.model.layers import MultiHeadAttention

# As in base: one head for every 64 of the width.
HEAD_WIDTH = 64


class SelfAttention(nn.Module):
    """The paper's layer over sentences (batch, n, d); with a window r a position sees r / 2 positions on each side.

    Uses eager attention, which computes Eq. 1 as the paper counts it; fused kernels store no weights and need less
    memory.
    """

    def __init__(self, d: int, window: int | None = None) -> None:
        super().__init__()
        config = VanillaTransformerConfig(d_model=d, num_heads=max(1, d // HEAD_WIDTH), d_ff=1)
        config._attn_implementation = "eager"
        self.attention, self.window = MultiHeadAttention(config, 0), window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, n, d) to the same shape."""
        mask = None
        if self.window is not None:
            outside = ~window_mask(x.shape[1], self.window)
            mask = torch.zeros(outside.shape).masked_fill_(outside, -torch.inf)
        return self.attention(x, mask)[0]


class Recurrent(nn.Module):
    """Recurrence h_t = tanh(W x_t + U h_(t-1)), torch's own."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(d, d, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, n, d) to the same shape."""
        return self.rnn(x)[0]


class Convolutional(nn.Module):
    """Convolution with a kernel of k positions, torch's own."""

    def __init__(self, d: int, kernel: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(d, d, kernel, padding="same", bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, n, d) to the same shape."""
        return self.convolution(x.mT).mT


def window_mask(n: int, window: int) -> torch.Tensor:
    """Returns True where a position may attend: at most r / 2 away, (n, n)."""
    places = torch.arange(n)
    return (places[:, None] - places).abs() <= window // 2


@dataclass(frozen=True)
class Row:
    """One row of Table 1: the paper's formulas, and the real layer.

    Attributes:
        operations: Exact number of multiplications in the layer's products, for a sentence of n and a width of d. The
            paper counts only those in which the layers differ, without the projections of self-attention.
        path: Layers, or steps of a recurrence, from the first position to the last.
    """

    name: str
    complexity: str
    sequential: str
    longest_path: str
    make: Callable[[int], nn.Module]
    operations: Callable[[int, int], int]
    path: Callable[[int], int]


def table_rows(window: int, kernel: int) -> list[Row]:
    """Returns the four rows in the paper's order."""

    def reach(width: int) -> Callable[[int], int]:
        return lambda n: max(1, math.ceil((n - 1) / (width // 2)))

    def attended(n: int, d: int) -> int:
        return 4 * n * d * d + 2 * d * int(window_mask(n, window).sum())

    return [
        Row("self-attention", "O(n²·d)", "O(1)", "O(1)", SelfAttention, lambda n, d: 4 * n * d * d + 2 * n * n * d,
            lambda n: 1),
        Row("recurrent", "O(n·d²)", "O(n)", "O(n)", Recurrent, lambda n, d: 2 * n * d * d,
            lambda n: n - 1),
        Row("convolutional", "O(k·n·d²)", "O(1)", "O(log_k(n)), contiguous kernels O(n/k)",
            lambda d: Convolutional(d, kernel), lambda n, d: kernel * n * d * d, reach(kernel)),
        Row("self-attention (restricted)", "O(r·n·d)", "O(1)", "O(n/r)", lambda d: SelfAttention(d, window), attended,
            reach(window)),
    ]  # fmt: skip


def count_multiplications(layer: nn.Module, n: int, d: int) -> int:
    """Counts the layer's multiplications for one sentence, with torch's own counter; a mask does not reduce them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.zeros(1, n, d))
    return counter.get_total_flops() // 2


def longest_chain(layer: nn.Module, n: int, d: int) -> int:
    """Counts the products that depend on one another, in the graph of a forward pass."""
    products = ("AddmmBackward", "MmBackward", "BmmBackward", "Convolution", "ScaledDotProduct")
    depths: dict[Any, int] = {}
    output = layer(torch.zeros(1, n, d, requires_grad=True))
    stack = [output.grad_fn]
    while stack:
        node = stack[-1]
        below = [function for function, _ in node.next_functions if function is not None]
        missing = [function for function in below if function not in depths]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        depths[node] = max((depths[function] for function in below), default=0) + any(
            p in node.name() for p in products
        )
    return depths[output.grad_fn]


def path_length(row: Row, n: int, d: int) -> int:
    """Counts layers until the last position depends on the first, each with its sequential steps."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    while True:
        layers.append(row.make(d))
        x = torch.randn(1, n, d, requires_grad=True)
        (gradient,) = torch.autograd.grad(nn.Sequential(*layers)(x)[0, -1].sum(), x)
        if gradient[0, 0].abs().max() > 0:
            break
    if isinstance(layers[0], Recurrent):
        # One layer reaches every position, with one step for each.
        return longest_chain(layers[0], n, d) - 1
    return len(layers)


@dataclass(frozen=True)
class Cost:
    """A forward and backward pass: milliseconds, and bytes stored between the two."""

    layer: str
    n: int
    d: int
    milliseconds: float
    saved_bytes: int


def measure(rows: Sequence[Row], lengths: Sequence[int], widths: Sequence[int], repeats: int) -> list[Cost]:
    """Measures all layers in turns, so that a slowdown of the machine affects all of them; returns medians."""
    # Processor time excludes other programs, but only the clock measures a pass on several threads.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    costs = []
    for d in widths:
        for n in lengths:
            layers = {row.name: row.make(d) for row in rows}
            x = torch.randn(1, n, d, requires_grad=True)
            times: dict[str, list[float]] = {name: [] for name in layers}
            for turn in range(repeats + 1):
                for name, layer in layers.items():
                    started = clock()
                    layer(x).sum().backward()
                    if turn:
                        times[name].append(clock() - started)
            costs += [
                Cost(name, n, d, 1000 * statistics.median(times[name]), saved_bytes(layer, x))
                for name, layer in layers.items()
            ]
    return costs


def saved_bytes(layer: nn.Module, x: torch.Tensor) -> int:
    """Returns the bytes that the forward pass stores for the backward pass, without weights, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(x)
    del output
    return sum(kept.values())


def crossing(costs: Sequence[Cost], d: int, other: str) -> float | None:
    """Returns the sentence length from which self-attention is slower than another layer of the same width."""
    ours = {cost.n: cost.milliseconds for cost in costs if cost.d == d and cost.layer == "self-attention"}
    theirs = {cost.n: cost.milliseconds for cost in costs if cost.d == d and cost.layer == other}
    behind = None
    for n in sorted(ours, reverse=True):
        ratio = math.log(ours[n] / theirs[n])
        if ratio <= 0:
            if behind is None:
                return None
            (m, most) = behind
            return math.exp(math.log(n) + (math.log(m) - math.log(n)) * -ratio / (most - ratio))
        behind = (n, ratio)
    return float(min(ours))


def write_report(directory: Path, rows: Sequence[Row], costs: Sequence[Cost], settings: dict[str, Any]) -> None:
    """Writes Table 1 with its counts, the times, the crossings, and the picture."""
    n, d = settings["counted_at"]
    lines = [
        f"| layer | complexity | counted | by torch's counter, n {n}, d {d} | sequential | "
        f"chain of products, n {n // 2} and {n} | longest path | layers or steps from first to last, n {n} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        layer = row.make(d)
        chains = [longest_chain(layer, length, d) for length in (n // 2, n)]
        lines.append(
            f"| {row.name} | {row.complexity} | {row.operations(n, d):,} | {count_multiplications(layer, n, d):,} | "
            f"{row.sequential} | {chains[0]}, {chains[1]} | {row.longest_path} | {path_length(row, n, d)} |"
        )
    lines += [
        "",
        f"Window r {settings['window']}, kernel k {settings['kernel']}; multiplications of one sentence.",
        "",
    ]
    lengths, widths = sorted({cost.n for cost in costs}), sorted({cost.d for cost in costs})
    for width in widths:
        lines += [f"| d {width}, ms (MB kept) | " + " | ".join(f"n {length}" for length in lengths) + " |"]
        lines += ["| --- |" + " --- |" * len(lengths)]
        for row in rows:
            found = {cost.n: cost for cost in costs if cost.d == width and cost.layer == row.name}
            cells = (f"{found[n].milliseconds:.2f} ({found[n].saved_bytes / 1e6:.2f})" for n in lengths)
            lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
        for other in ("recurrent", "convolutional"):
            place = crossing(costs, width, other)
            told = f"n = {place:,.0f}" if place else f"no n up to {lengths[-1]:,}"
            lines.append(f"| self-attention is slower than {other} from | {told} |" + " |" * (len(lengths) - 1))
        lines.append("")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "table1.md").write_text("\n".join(lines), encoding="utf-8")
    report = {**settings, "costs": [asdict(cost) for cost in costs]}
    (directory / "table1.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    draw(costs, directory / "table1.png")


def draw(costs: Sequence[Cost], file: Path) -> None:
    """Draws time and memory over n, a column for each width, on logarithmic scales; dotted where n = d."""
    from matplotlib.figure import Figure

    widths = sorted({cost.d for cost in costs})
    figure = Figure(figsize=(3.2 * len(widths), 6.4), layout="constrained")
    grid = figure.subplots(2, len(widths), squeeze=False, sharex=True, sharey="row")
    for column, d in enumerate(widths):
        for name in dict.fromkeys(cost.layer for cost in costs):
            found = sorted((cost for cost in costs if cost.d == d and cost.layer == name), key=lambda cost: cost.n)
            lengths = [cost.n for cost in found]
            # A mask saves self-attention no work, so its line would hide the other.
            style = {"marker": ".", "label": name, "linestyle": "--" if "restricted" in name else "-"}
            grid[0, column].loglog(lengths, [cost.milliseconds for cost in found], **style)
            grid[1, column].loglog(lengths, [cost.saved_bytes / 1e6 for cost in found], **style)
        for axes in grid[:, column]:
            axes.axvline(d, color="grey", linestyle=":", linewidth=1)
            axes.grid(visible=True, which="major", alpha=0.3)
        grid[0, column].set_title(f"d = {d}", fontsize=10)
        grid[1, column].set_xlabel("n, positions")
    grid[0, 0].set_ylabel("ms, forward and backward")
    grid[1, 0].set_ylabel("MB kept for the backward pass")
    grid[0, 0].legend(fontsize=8)
    figure.savefig(file, dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="directory for table1.md, table1.json, table1.png")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 512, 1024])
    parser.add_argument("--window", type=int, default=32, help="r of restricted self-attention")
    parser.add_argument("--kernel", type=int, default=3, help="k of the convolution, odd")
    parser.add_argument("--repeats", type=int, default=5, help="passes of each layer; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(argv)
    if min(options.lengths + options.widths + [options.repeats, options.threads]) < 1 or options.kernel % 2 == 0:
        parser.error("lengths, widths, repeats and threads must be at least 1, and the kernel odd.")
    if options.window < 2 or options.kernel < 3:
        parser.error("a window below 2 or a kernel below 3 never reaches another position.")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows = table_rows(options.window, options.kernel)
    costs = measure(rows, options.lengths, options.widths, options.repeats)
    settings = {
        "counted_at": [min(64, max(options.lengths)), min(options.widths)],
        **{name: getattr(options, name) for name in ("window", "kernel", "repeats", "threads")},
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    write_report(options.output, rows, costs, settings)
    print((options.output / "table1.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
