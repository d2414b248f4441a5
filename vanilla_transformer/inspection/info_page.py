"""The human-readable output of `vanilla-transformer info`, 80 columns wide."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_WIDTH = 80
_STACKS = {"encoder_layers", "decoder_layers"}
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
    yield from _sizes(report["model"], report["sizes"])
    yield from _parameters(report["parameters"], report["table_3"])
    if report["table_3"] is not None:
        yield from _vocabularies(report)
    yield from _training(report["training"])
    yield from _memory(report["memory"])
    yield from _processor(report["processor"])
    if report["run"] is not None:
        yield from _run(report["run"])


def _sizes(name: str, sizes: dict[str, Any]) -> Iterator[str]:
    if "cell" in sizes:
        yield from _recurrent_sizes(name, sizes)
        return
    layers = [f"{sizes[stack]}" for stack in ("encoder_layers", "decoder_layers") if stack in sizes]
    alone = f"{next(iter(sizes.keys() & _STACKS)).removesuffix('_layers')} " if len(layers) == 1 else ""
    yield from _text(
        f"{name}: {' + '.join(layers)} {alone}layers, d_model {sizes['d_model']:,}, "
        f"d_ff {sizes['d_ff']:,}, {sizes['num_heads']} heads with d_k {sizes['d_k']} and d_v {sizes['d_v']}, "
        f"vocabulary {sizes['vocab_size']:,}, dropout {sizes['dropout']:g}, "
        f"label smoothing {sizes['label_smoothing']:g}, {sizes['positional_encoding']} positions",
        indent="",
    )


def _recurrent_sizes(name: str, sizes: dict[str, Any]) -> Iterator[str]:
    window = "" if sizes["attention_window"] is None else f" within {sizes['attention_window']} of where it looks"
    attention = "no attention" if sizes["attention"] == "none" else f"attention {sizes['attention']}{window}"
    yield from _text(
        f"{name}: {sizes['num_layers']} + {sizes['num_layers']} {sizes['cell'].upper()} layers, "
        f"{'bidirectional encoder, ' if sizes['bidirectional'] else ''}{attention}, d_model {sizes['d_model']:,}, "
        f"vocabulary {sizes['vocab_size']:,}, dropout {sizes['dropout']:g}, "
        f"label smoothing {sizes['label_smoothing']:g}",
        indent="",
    )


def _parameters(parameters: dict[str, int], table_3: dict[str, Any] | None) -> Iterator[str]:
    total = parameters["total"]
    yield from ("", "PARAMETERS")
    for part, count in parameters.items():
        if part != "total" and (count or part != "positions"):
            words = part.replace("_attention", "-attention").replace("feed_", "feed-").replace("_", " ")
            yield f"  {words:<28}{count:>13,}{count / total:>8.1%}"
    yield f"  {'total':<28}{total:>13,}"
    if table_3 is None:
        return
    millions = table_3["millions"]
    if millions is None:
        yield from _text("Table 3 of the paper leaves this row open, meaning the same as base: 65 million.")
    else:
        yield f"  {'the paper, Table 3':<28}{millions:>5} million"


def _vocabularies(report: dict[str, Any]) -> Iterator[str]:
    table = report["table_3"]
    vocab_size = report["sizes"]["vocab_size"]
    yield ""
    yield from _text(
        "Why they differ: the paper does not publish its vocabulary, only that it has about 37,000 entries. "
        f"Ours has {vocab_size:,}. For each row with a number, the vocabulary sizes that lead to it:"
    )
    yield ""
    yield f"    {'':<19}{'paper':>7}{'ours':>9}   vocabulary for the paper's"
    for row in table["rows"]:
        mark = ">" if row["preset"] == report["model"] else " "
        low, high = row["vocabularies"]
        yield (
            f"  {mark} {row['preset']:<19}{row['millions']:>5} M{row['parameters'] / 1e6:>7.1f} M"
            f"   {low:,} to {high:,}"
        )
    yield ""
    low, high = table["common_vocabularies"]
    others = table["rows_with_other_vocabularies"]
    agreeing = len(table["rows"]) - len(others)
    rest = f"; no single vocabulary also explains {' and '.join(others)}" if others else ""
    yield from _text(
        f"A vocabulary of {low:,} to {high:,} entries explains {agreeing} of the {len(table['rows'])}{rest}."
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


def _memory(memory: dict[str, int]) -> Iterator[str]:
    yield from ("", "TRAINING MEMORY, per process, without activations")
    for part, words in (
        ("weights", "weights"),
        ("gradients", "gradients"),
        ("adam", "Adam's two moments"),
        ("total", "total"),
    ):
        yield f"  {words:<28}{_bytes(memory[part]):>13}"
    yield from _text(
        "All of them are float32, 4 bytes a number. The activations of a batch come on top: they grow with its tokens."
    )


def _processor(processor: dict[str, Any]) -> Iterator[str]:
    bits = processor["int8_weight_bits"]
    int8 = "not available" if bits is None else f"{bits}-bit weights" + (", 8 bits would overflow" if bits < 8 else "")
    extras = "".join(f", {name.upper()}" for name in ("vnni", "amx") if processor[name])
    yield from ("", "THIS PROCESSOR")
    lines = [
        ("instructions, threads", f"{processor['instructions']}{extras}; {processor['threads']}"),
        ("bfloat16", "native" if processor["bfloat16_products"] else "emulated, computed in float32"),
        ("int8", int8),
    ]
    if processor["translate_takes"] is not None:
        lines.append(("translate uses", processor["translate_takes"]))
    for label, words in lines:
        yield f"  {label:<28}{words}"


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
