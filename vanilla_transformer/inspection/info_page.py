"""The human-readable output of `vanilla-transformer info`, 80 columns wide."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from vanilla_transformer.inspection.paper_tables import VOCABULARIES

_WIDTH = 80
_RUN_LINES: list[tuple[str, str, Callable[[Any], str]]] = [
    ("steps", "steps", "{:,}".format),
    ("epochs", "epochs", "{:.1f}".format),
    ("pairs", "pairs", "{:,}".format),
    ("target tokens", "target_tokens", "{:,}".format),
    ("target tokens per second", "target_tokens_per_second", "{:,.0f}".format),
    ("minutes", "seconds", lambda seconds: f"{seconds / 60:.1f}"),
    ("device", "device", str),
    ("processes", "processes", str),
    ("precision", "precision", str),
    ("FLOPs", "flops", lambda flops: _exponent(flops)),
    ("share of peak", "share_of_peak", "{:.1%}".format),
    ("peak FLOP/s", "peak_flops_per_second", lambda flops: _exponent(flops)),
    ("peak is", "peak_source", str),
    ("peak memory", "peak_memory_bytes", lambda size: _bytes(size)),
    ("last training loss", "last_loss", "{:.3f}".format),
    ("dev loss, last", "last_dev_loss", "{:.4f}".format),
    ("dev loss, best", "best_dev_loss", "{:.4f}".format),
]


def info_page(report: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the page."""
    yield from _text(f"{report['model']}: {_sizes(report['sizes'])}", indent="")
    yield from _parameters(report["parameters"], report["table_3_millions"])
    yield from _training(report["training"])
    yield from ("", "TRAINING MEMORY, per process, without activations")
    yield from (f"  {part:<28}{_bytes(size):>13}" for part, size in report["memory"].items())
    yield from _text(
        "All of them are float32, 4 bytes a number. The activations of a batch come on top: they grow with its tokens."
    )
    yield from ("", "THIS PROCESSOR")
    yield from (f"  {label:<28}{words}" for label, words in _processor(report["processor"]))
    if report["run"] is not None:
        yield from _run(report["run"])


def _sizes(sizes: dict[str, Any]) -> str:
    common = (
        f"d_model {sizes['d_model']:,}, vocabulary {sizes['vocab_size']:,}, dropout {sizes['dropout']:g}, "
        f"label smoothing {sizes['label_smoothing']:g}"
    )
    if "cell" in sizes:
        window = "" if sizes["attention_window"] is None else f" within {sizes['attention_window']} of where it looks"
        encoder = "bidirectional encoder, " if sizes["bidirectional"] else ""
        layers = f"{sizes['num_layers']} + {sizes['num_layers']} {sizes['cell'].upper()} layers"
        return f"{layers}, {encoder}attention {sizes['attention']}{window}, {common}"
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_layers" in sizes]
    layers = " + ".join(f"{sizes[f'{stack}_layers']} {stack}" for stack in stacks)
    return (
        f"{layers} layers, d_ff {sizes['d_ff']:,}, {sizes['num_heads']} heads with d_k {sizes['d_k']} and "
        f"d_v {sizes['d_v']}, {common}, {sizes['positional_encoding']} positions"
    )


def _parameters(parameters: dict[str, int], paper: int | None) -> Iterator[str]:
    total = parameters["total"]
    yield from ("", "PARAMETERS")
    for part, count in parameters.items():
        if count or part != "positions":
            words = part.replace("_attention", "-attention").replace("feed_", "feed-").replace("_", " ")
            yield f"  {words:<28}{count:>13,}{count / total:>8.1%}"
    if paper is not None:
        low, high = VOCABULARIES
        yield f"  {'the paper, Table 3':<28}{paper:>5} million"
        yield from _text(
            "Why they differ: the paper does not publish its vocabulary, only that it has about 37,000 entries. With "
            f"{low:,} to {high:,} all numbers of Table 3 but big's are ours."
        )


def _training(training: dict[str, Any]) -> Iterator[str]:
    length = training["sentence_length"]
    if "flops_per_token" in training:
        yield from ("", f"TRAINING, with texts of {length} tokens")
        yield f"  {'per token':<57}{_exponent(training['flops_per_token']):>8} FLOPs"
        return
    yield from ("", f"TRAINING, with sentences of {length} + {length} tokens")
    yield f"  {'per target token, with its source':<57}{_exponent(training['flops_per_target_token']):>8} FLOPs"
    if "steps" not in training:
        return
    tokens = training["step_tokens"]
    schedule = f"{training['steps']:,} steps of {tokens:,} + {tokens:,} tokens"
    yield f"  {f'{schedule}, as in the paper':<57}{_exponent(training['flops']):>8} FLOPs"
    published = training["table_2"]
    if published is not None:
        yield f"  {'the paper, Table 2':<57}{_exponent(published['table_2_flops'], 1):>8} FLOPs"
        yield ""
        yield from _text(
            "Why they differ: ours counts the operations of the matrix products, forward and backward. The paper's "
            f"is device time × sustained FLOP/s: {published['hours']:g} hours × {published['devices']} P100 × "
            f"{published['flops_per_second'] / 1e12:g} TFLOP/s = {_exponent(published['device_flops'])}. "
            f"So {published['share']:.0%} of it went into these operations."
        )


def _processor(processor: dict[str, Any]) -> Iterator[tuple[str, str]]:
    bits = processor["int8_weight_bits"]
    extras = "".join(f", {name.upper()}" for name in ("vnni", "amx") if processor[name])
    yield "instructions, threads", f"{processor['instructions']}{extras}; {processor['threads']}"
    yield "bfloat16", "native" if processor["bfloat16_products"] else "emulated, computed in float32"
    yield "int8", "not available" if bits is None else f"{bits}-bit weights" + ", 8 bits would overflow" * (bits < 8)
    if processor["translate_takes"] is not None:
        yield "translate uses", processor["translate_takes"]


def _run(run: dict[str, Any]) -> Iterator[str]:
    """Yields the figures in its summary.json."""
    yield from ("", "TRAINING RUN")
    for label, field, words in _RUN_LINES:
        if run.get(field) is not None:
            yield f"  {label:<28}{words(run[field])}"
    for part, scores in run.get("scores", {}).items():
        for score in scores:
            yield f"  {part + ', ' + score['name']:<28}{score['value']:.2f}  {score['signature']}"


def _text(words: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(words, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _exponent(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}e}".replace("e+", "e")


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
