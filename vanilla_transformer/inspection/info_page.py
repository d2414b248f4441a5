"""The human-readable output of `vanilla-transformer info`, 80 columns wide."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from vanilla_transformer.inspection.paper_tables import FLOPS_PER_SECOND, VOCABULARY_SIZES


def info_page(report: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the page."""
    yield report["model"]
    yield from _table("SIZES", report["sizes"])
    yield from _table("PARAMETERS", report["parameters"], of_total=True)
    if report["table_3_millions"] is not None:
        yield f"  {'the paper, Table 3':<28}{report['table_3_millions']:>13} million"
        low, high = VOCABULARY_SIZES
        yield from _text(
            "Why they differ: the paper does not publish its vocabulary, only that it has about 37,000 entries. With "
            f"{low:,} to {high:,} all numbers of Table 3 but big's are ours."
        )
    training, published = report["training"], report["training"].get("table_2")
    yield from _table("TRAINING", training)
    if published is not None:
        yield f"  {'the paper, Table 2':<28}{_shown(published['table_2_flops']):>13}"
        yield from _text(
            "Why they differ: ours counts the operations of the matrix products, forward and backward. The paper's "
            f"is device time × sustained FLOP/s: {published['hours']:g} hours × {published['devices']} P100 × "
            f"{FLOPS_PER_SECOND / 1e12:g} TFLOP/s = {_shown(published['device_flops'])}. "
            f"So {published['share']:.0%} of it went into these operations."
        )


def _table(title: str, values: Mapping[str, Any], *, of_total: bool = False) -> Iterator[str]:
    """Yields a row for each figure that there is."""
    yield from ("", title)
    for name, value in values.items():
        if value is not None and not isinstance(value, dict):
            share = f"{value / values['total']:>8.1%}" if of_total else ""
            yield f"  {name:<28}{_shown(value):>13}{share}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2e}" if value >= 1e7 else f"{value:,.4g}"


def _text(words: str) -> list[str]:
    return textwrap.wrap(words, 80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
