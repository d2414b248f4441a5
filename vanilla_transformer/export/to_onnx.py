"""Export of our models to ONNX Runtime: `translate.onnx` maps the tokens of sentences to those of translations."""

from pathlib import Path
from typing import Any

import torch

from vanilla_transformer.engine.onnx_graph import ACTIVATIONS
from vanilla_transformer.engine.onnx_search import Rules, SearchGraph
from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.onnx_defaults import Defaults
from vanilla_transformer.export.refusals import refuse_unexportable
from vanilla_transformer.export.vocabulary_files import save_tokenizer
from vanilla_transformer.plain_text import plain_text

QUANTIZATIONS = ("float32", "int8")
# Protocol buffers hold no more bytes than this.
_TOO_LARGE = (1 << 31) - 1
_ENDLESS = 1 << 31

_README = """# For ONNX Runtime

`translate.onnx` translates: encoder, beam search and its length penalty are one graph, in any language that has ONNX
Runtime. Tokens come from `tokenizer.json` (the package `tokenizers` for Python, Rust or JavaScript).

```python
{client}```

| input | shape | what it is |
|---|---|---|
| `input_ids` | int64 (sentences, length) | tokens, each sentence with its end |
| `attention_mask` | int64 (sentences, length) | 1 on tokens and 0 on padding; may be left out where there is none |
| `num_beams` | int64 (1) | hypotheses of each step, 1 for greedy search; default {num_beams} |
| `num_return_sequences` | int64 (1) | best hypotheses that are given; default {num_return_sequences} |
| `length_penalty` | float (1) | its exponent; default {length_penalty} |
| `max_length_beyond_source` | int64 (1) | tokens that a translation may have beyond its source; default {beyond} |
| `max_new_tokens` | int64 (1) | tokens that it may have, instead of that; 0 for none; default {most} |

| output | shape | what it is |
|---|---|---|
| `sequences` | int64 (sentences, hypotheses, length) | tokens, best hypothesis first, padded with {padding} |
| `scores` | float (sentences, hypotheses) | log-probability over the length penalty |
| `lengths` | int64 (sentences, hypotheses) | tokens of each; 0 where there is no such hypothesis |

Only `input_ids` must be given. {precision}
"""
_PRECISIONS = {
    "float32": "Weights are in float32, for any processor.",
    "int8": "Matrices are in int8 on 7 bits, so that their products are right on any x86 processor, with VNNI and\n"
    "without. Arm has not been tried.",
}
CLIENT = """import numpy as np
import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("translate.onnx")
tokenizer = Tokenizer.from_file("tokenizer.json")
ids = tokenizer.encode("A dog runs.").ids
sequences, scores, lengths = session.run(None, {"input_ids": np.array([ids])})
print(tokenizer.decode(sequences[0, 0, : lengths[0, 0]]), scores[0, 0])
"""


def export_onnx(model: Any, tokenizer: Any, output: Path, quantization: str = "float32") -> list[str]:
    """Writes `translate.onnx`, the tokenizer, settings and a README.

    Args:
        model: An encoder-decoder.
        tokenizer: The tokenizer of the model.
        output: The folder.
        quantization: `int8` rounds matrices; activations are rounded for each product.

    Returns:
        Remarks for the user.

    Raises:
        ModelError: There is no such quantization, or the graph cannot compute the model.
        ValueError: The model decodes with settings that the graph does not follow.
    """
    if quantization not in QUANTIZATIONS:
        raise ModelError(f"Quantization {quantization!r} is not available for ONNX: use float32 or int8.")
    refuse_uncomputable(model)
    defaults = Defaults.of(model)
    output.mkdir(parents=True, exist_ok=True)
    write_graph(model, defaults, output / "translate.onnx", quantization)
    model.config.save_pretrained(output)
    remarks = []
    if not save_tokenizer(plain_text(tokenizer), output):
        remarks.append(
            "There is no tokenizer.json, because the model's tokenizer has none: split text by other means."
        )
    readme = _README.format(
        client=CLIENT,
        precision=_PRECISIONS[quantization],
        padding=defaults.padding,
        num_beams=defaults.num_beams,
        num_return_sequences=defaults.num_return_sequences,
        length_penalty=defaults.length_penalty,
        beyond=defaults.beyond,
        most=defaults.most or 0,
    )
    (output / "README.md").write_text(readme, encoding="utf-8")
    return remarks


def refuse_uncomputable(model: Any) -> None:
    """Raises ModelError if the graph would not compute the model."""
    refuse_unexportable(model, ACTIVATIONS)


def write_graph(model: Any, defaults: Defaults, path: Path, quantization: str = "float32") -> None:
    """Writes the graph of the whole search.

    Raises:
        ModelError: The graph is too large for an ONNX file.
    """
    with torch.no_grad():
        graph = translation_graph(model, defaults, None if quantization == "float32" else quantization)
    if graph.ByteSize() > _TOO_LARGE:
        raise ModelError("The model has more than 2 GB of weights, which is too large for one file: use int8.")
    path.write_bytes(graph.SerializeToString())


def translation_graph(model: Any, defaults: Defaults, quantization: str | None = None) -> Any:
    """Builds the graph; the README of an export describes its inputs."""
    graph, config = SearchGraph(model, quantization), model.config
    tokens_NS = graph.input("input_ids", ["sentences", "length"], "INT64")
    mask_NS = graph.input("attention_mask", ["mask_sentences", "mask_length"], "INT64", [[1]])
    width = graph.input("num_beams", [1], "INT64", [defaults.num_beams])
    best = graph.input("num_return_sequences", [1], "INT64", [defaults.num_return_sequences])
    exponent = graph.input("length_penalty", [1], "FLOAT", [float(defaults.length_penalty)])
    beyond = graph.input("max_length_beyond_source", [1], "INT64", [defaults.beyond])
    most = graph.input("max_new_tokens", [1], "INT64", [defaults.most or 0])

    shape_NS = graph.node("Shape", tokens_NS)
    mask_NS = graph.cast(graph.node("Expand", mask_NS, shape_NS), "INT32")
    source_N1 = graph.cast(graph.node("ReduceSum", mask_NS, graph.number(1), keepdims=1), "INT64")
    has_most = graph.node("Greater", most, graph.number(0))
    lengths_N1 = graph.node("Where", has_most, most, graph.node("Add", source_N1, beyond))
    lengths_N1 = graph.node("Min", lengths_N1, graph.number(defaults.positions or _ENDLESS))
    lengths_N1 = graph.node("Max", lengths_N1, graph.number(1))
    longest = graph.node("ReduceMax", lengths_N1, keepdims=0)
    source_length = graph.node("Squeeze", graph.node("Gather", shape_NS, graph.number(1)), graph.number(0))
    source, target = graph.positions(graph.node("Max", longest, source_length))
    graph.read(tokens_NS, mask_NS, source)

    ends = torch.tensor(defaults.ends, dtype=torch.long)
    per_hypothesis = graph.node("Mul", width, graph.number(max(2, 1 + len(ends))))
    greedy = graph.node("Equal", width, graph.number(1))
    never = defaults.early_stopping == "never"
    # Where scores never rise, the returned hypotheses can be certain before all W are finished.
    certain = never and defaults.forced_end is None
    rules = Rules(
        lengths_N1=lengths_N1,
        horizon_N1=lengths_N1 if certain else graph.node("ReduceMax", lengths_N1, keepdims=1),
        width=width,
        candidates=graph.node("Where", greedy, width, per_hypothesis),
        counted=best if certain else width,
        best=best,
        exponent=exponent,
        offset=graph.number(5.0 if defaults.google else 0.0),
        divisor=graph.number(6.0 if defaults.google else 1.0),
        exact=graph.node("And", graph.number(never), graph.node("Greater", exponent, graph.number(0.0))),
        may_improve=graph.number(defaults.early_stopping is not True),
    )

    last_step_N11 = graph.node("Unsqueeze", graph.node("Sub", lengths_N1, graph.number(1)), graph.number(2))

    def change(step: Any, log_p_NWV: str, number: str) -> str:
        """Applies the model's rules to log-probabilities: forbidden tokens, a forced end at a sentence's limit."""
        if defaults.never:
            forbidden_V = torch.zeros(config.vocab_size, dtype=torch.float32)
            forbidden_V[torch.tensor(defaults.never)] = -torch.inf
            log_p_NWV = step.node("Add", log_p_NWV, graph.constant(forbidden_V))
        if defaults.forced_end is not None:
            forced_V = torch.full((config.vocab_size,), -torch.inf, dtype=torch.float32)
            forced_V[torch.tensor(defaults.forced_end)] = 0.0
            is_last_N11 = step.node("GreaterOrEqual", number, last_step_N11)
            log_p_NWV = step.node("Where", is_last_N11, graph.constant(forced_V), log_p_NWV)
        return log_p_NWV

    ends_V = graph.constant(torch.isin(torch.arange(config.vocab_size), ends))
    start = graph.number(defaults.start)
    scores, tokens, _, lengths = graph.beam(rules, start, ends_V, target, change, defaults.padding)
    shape = ["sentences", "hypotheses", "length"]
    graph.output("sequences", tokens, shape, "INT64")
    graph.output("scores", scores, shape[:2])
    graph.output("lengths", lengths, shape[:2], "INT64")
    return graph.model(["sequences", "scores", "lengths"])
