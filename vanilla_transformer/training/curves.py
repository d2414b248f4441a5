"""Learning curves as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vanilla_transformer.atomic_files import atomic_replace


def plot_learning_curves(records: Sequence[dict[str, object]], file: Path, unit: str) -> None:
    """Plots training loss, loss on `dev` and learning rate over the steps from the records of a metrics.jsonl.

    `unit` is the unit of the losses, such as nats per target token.
    """
    figure = Figure(figsize=(8, 6), layout="constrained")
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _plot(losses, records, "loss", "train, with dropout and label smoothing")
    _plot(losses, records, "dev_loss", "dev, without either")
    _plot(rates, records, "learning_rate", "Eq. 3")
    losses.set_ylabel(f"loss, {unit}")
    rates.set_ylabel("learning rate")
    rates.set_xlabel("step")
    save_figure(figure, file, dpi=120)


def save_figure(figure: Figure, file: Path, dpi: int = 150) -> None:
    """Writes a picture in the format of its suffix, completely or not at all."""
    with atomic_replace(file) as temporary:
        figure.savefig(temporary, dpi=dpi)


def _plot(axes: Axes, records: Sequence[dict[str, object]], field: str, label: str) -> None:
    points = [(record["step"], record[field]) for record in records if field in record]
    if points:
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, label=label, marker="." if len(points) < 20 else "")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
