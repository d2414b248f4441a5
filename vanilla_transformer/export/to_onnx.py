"""Export of our models to ONNX Runtime: `translate.onnx` maps the tokens of sentences to those of translations."""

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.refusals import exportable
from vanilla_transformer.graph.beside import CLIENT, write_beside
from vanilla_transformer.graph.settings import Settings
from vanilla_transformer.graph.supported import ACTIVATIONS, shapes
from vanilla_transformer.graph.weights import WEIGHTS, rounded
from vanilla_transformer.model.generation_vanilla_transformer import savable
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text

_README = """# For ONNX Runtime

`translate.onnx` translates: encoder, beam search and its length penalty are one graph, in any language that has ONNX
Runtime. Its weights are in `model.safetensors` beside it. Tokens come from `tokenizer.json` (the package `tokenizers`
for Python, Rust or JavaScript).

```python
{client}```

| input | shape | what it is |
|---|---|---|
| `input_ids` | int64 (sentences, length) | tokens, each sentence with its end |
| `attention_mask` | int64 (sentences, length) | 1 on tokens and 0 on padding; may be left out where there is none |
| `num_beams` | int64 (1) | hypotheses of each step, 1 for greedy search; default {defaults.num_beams} |
| `num_return_sequences` | int64 (1) | best hypotheses that are given; default {defaults.num_return_sequences} |
| `length_penalty` | float (1) | its exponent; default {defaults.length_penalty} |
| `max_length_beyond_source` | int64 (1) | tokens that a translation may have beyond its source; default {beyond} |
| `max_new_tokens` | int64 (1) | tokens that it may have, instead of that; 0 for none; default {limit} |

| output | shape | what it is |
|---|---|---|
| `sequences` | int64 (sentences, hypotheses, length) | tokens, best hypothesis first, padded with {defaults.padding} |
| `scores` | float (sentences, hypotheses) | log-probability over the length penalty |
| `lengths` | int64 (sentences, hypotheses) | tokens of each; 0 where there is no such hypothesis |

Only `input_ids` must be given. {precision}
"""
_PRECISIONS = {
    "float32": "Weights are in float32, for any processor.",
    "int8": "Matrices are in int8 on 7 bits, so that their products are right on any x86 processor, with VNNI and\n"
    "without. Arm has not been tried.",
}


def export_onnx(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path, quantization: str = "float32"
) -> list[str]:
    """Writes `translate.onnx` with its weights, the tokenizer, settings and a README; returns remarks for the user.

    Args:
        quantization: `float32`, or `int8`, which rounds matrices; activations are rounded for each product.
    """
    if quantization not in _PRECISIONS:
        raise ModelError(f"Quantization {quantization!r} is not available for ONNX: use float32 or int8.")
    model = exportable(model, ACTIVATIONS, output)
    config, state = model.config.to_dict(), model.state_dict()
    try:
        Settings.of(config, model.generation_config.to_diff_dict())
        weights = ((name, np.ascontiguousarray(state[name].detach().float().numpy())) for name in shapes(config))
    except ModelError as unknown:
        raise ModelError(f"The model cannot be exported, because the graph does not know {unknown}.") from None
    output.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(output)
    savable(model.generation_config).save_pretrained(output)
    save_file(dict(weights if quantization == "float32" else rounded(config, weights)), output / WEIGHTS)
    shutil.copymode(output / "config.json", output / WEIGHTS)  # Its own is that of its owner alone.
    defaults = write_beside(output)
    remarks = []
    plain_text(tokenizer).save_pretrained(output)
    if not (output / "tokenizer.json").is_file():
        remarks.append(
            "There is no tokenizer.json, because the model's tokenizer has none: split text by other means."
        )
    readme = _README.format(
        client=CLIENT,
        precision=_PRECISIONS[quantization],
        defaults=defaults,
        beyond=defaults.max_length_beyond_source,
        limit=defaults.max_new_tokens or 0,
    )
    (output / "README.md").write_text(readme, encoding="utf-8")
    return remarks
