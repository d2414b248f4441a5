"""Export of our models to ONNX Runtime: `translate.onnx` maps source tokens to the tokens of translations."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import copy_permissions
from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.refusals import exportable
from vanilla_transformer.graph.onnx_file import CLIENT, write_onnx_file
from vanilla_transformer.graph.settings import Settings
from vanilla_transformer.graph.supported import ACTIVATIONS, shapes
from vanilla_transformer.graph.weights import WEIGHTS, rounded
from vanilla_transformer.model.generation_vanilla_transformer import savable
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text

_README = """# For ONNX Runtime

`translate.onnx` translates. The encoder, the decoder and beam search with its length penalty are one ONNX graph, which
runs in any programming language that has ONNX Runtime. It requires `model.safetensors`, which contains the weights,
and `generation_config.json` in the same directory. If one of them is replaced, it finds no hypothesis. Read tokens
with `tokenizer.json` (the package `tokenizers` for Python, Rust or JavaScript).

```python
{client}```

| input | shape | what it is |
|---|---|---|
| `input_ids` | int64 (sentences, length) | source tokens; each sentence includes its end token |
| `attention_mask` | int64 (sentences, length) | 1 on tokens and 0 on padding; optional if there is no padding |
| `num_beams` | int64 (1) | beam size; 1 for greedy search; default {defaults.num_beams} |
| `num_return_sequences` | int64 (1) | returned hypotheses per sentence; default {defaults.num_return_sequences} |
| `length_penalty` | float (1) | exponent of the length penalty; default {defaults.length_penalty} |
| `max_length_beyond_source` | int64 (1) | maximum tokens of a translation beyond its source; default {beyond} |
| `max_new_tokens` | int64 (1) | maximum tokens of a translation; 0 for the limit above; default {limit} |

| output | shape | what it is |
|---|---|---|
| `sequences` | int64 (sentences, hypotheses, length) | tokens, best hypothesis first, padded with {defaults.padding} |
| `scores` | float (sentences, hypotheses) | log-probability divided by the length penalty |
| `lengths` | int64 (sentences, hypotheses) | number of tokens; 0 if the hypothesis does not exist |

Only `input_ids` is required. {precision}
"""
_PRECISIONS = {
    "float32": "The weights are in float32, for any CPU.",
    "int8": "The matrices are in int8 and use 7 bits, so that results are correct on any x86 CPU, with and without\n"
    "VNNI. This was not tested on Arm.",
}


def export_onnx(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path, quantization: str = "float32"
) -> list[str]:
    """Writes `translate.onnx` with its weights, the tokenizer, settings and a README; returns remarks for the user.

    Args:
        quantization: `float32`, or `int8`, which quantizes the operands of each matrix multiplication.
    """
    if quantization not in _PRECISIONS:
        raise ModelError(f"Quantization {quantization!r} is not available for ONNX: use float32 or int8.")
    model = exportable(model, ACTIVATIONS, output)
    config, state = model.config.to_dict(), model.state_dict()
    try:
        Settings.of(config, model.generation_config.to_diff_dict())
        weights = ((name, np.ascontiguousarray(state[name].detach().float().numpy())) for name in shapes(config))
    except ModelError as unsupported:
        raise ModelError(f"The model cannot be exported: the ONNX graph does not support {unsupported}.") from None
    output.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(output)
    savable(model.generation_config).save_pretrained(output)
    save_file(dict(weights if quantization == "float32" else rounded(config, weights)), output / WEIGHTS)
    copy_permissions(output / "config.json", output / WEIGHTS)  # By default, only the owner could read it.
    defaults = write_onnx_file(output)
    remarks = []
    plain_text(tokenizer).save_pretrained(output)
    if not (output / "tokenizer.json").is_file():
        remarks.append(
            "There is no tokenizer.json, because the model's tokenizer has none: tokenize text by other means."
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
