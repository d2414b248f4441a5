"""Our models for ONNX: three graphs under the names that are usual for translation models, and a decoder in numpy."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer.export.errors import ConversionError
from vanilla_transformer.export.onnx_quantization import quantize_graphs
from vanilla_transformer.export.silence import silence
from vanilla_transformer.export.vocabulary import save_tokenizer
from vanilla_transformer.export.weights import refuse_right_to_left
from vanilla_transformer.model.generation import savable
from vanilla_transformer.translation import onnx_decode

QUANTIZATIONS = ("float32", "int8")
_BATCH, _SOURCE, _TARGET, _PAST = "batch", "source", "target", "past"
CACHE_PARTS = [f"{side}.{kind}" for side in ("decoder", "encoder") for kind in ("key", "value")]


_README = """# For ONNX Runtime

```bash
pip install numpy onnxruntime tokenizers
python decode.py < in.txt > out.txt
```

`decode.py` translates line by line, as the model's `generate` does; `--num-beams 1` is greedy search.
`vanilla-transformer translate` takes this folder as a model and does the same, without torch. `encoder_model.onnx`
reads the source, `decoder_model.onnx` begins a translation, `decoder_with_past_model.onnx` adds a token to one; batch
and lengths are free. {precision}
"""
_PRECISIONS = {
    "float32": "Weights are in float32, for any processor.",
    "int8": """Matrices are in int8 on
7 bits, so that their products are right on any x86 processor, with VNNI and without. Arm has not been tried.""",
}


class Encode(nn.Module):
    """Source to the encoder's output."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model  # The embedding is the whole model's.

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """(batch, source length) token ids to (batch, source length, d_model)."""
        return self.model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class _Begin(nn.Module):
    """The first target tokens to logits, and the keys and values of target and source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, encoder_attention_mask: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs = self.model(
            decoder_input_ids=input_ids,
            attention_mask=encoder_attention_mask,
            encoder_outputs=(encoder_hidden_states,),
            use_cache=True,
        )
        return outputs.logits, *cache_tensors(outputs.past_key_values, CACHE_PARTS)


class _GoOn(nn.Module):
    """One target token after others to logits, and the target's keys and values with its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, encoder_attention_mask: torch.Tensor, past_key_values: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        config = self.model.config
        cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        for layer in range(config.decoder_layers):
            key, value, source_key, source_value = past_key_values[4 * layer : 4 * layer + 4]
            cache.self_attention_cache.update(key, value, layer)
            cache.cross_attention_cache.update(source_key, source_value, layer)
            cache.is_updated[layer] = True
        # Only their shape counts: the keys and values made of them are there.
        states = source_key.new_zeros(source_key.shape[0], source_key.shape[2], config.d_model)
        outputs = self.model(
            decoder_input_ids=input_ids,
            attention_mask=encoder_attention_mask,
            encoder_outputs=(states,),
            past_key_values=cache,
            use_cache=True,
        )
        return outputs.logits, *cache_tensors(cache, CACHE_PARTS[:2])


def cache_tensors(cache: Any, parts: list[str]) -> list[torch.Tensor]:
    """Keys and values layer by layer, in the order of the parts."""
    caches = {"decoder": cache.self_attention_cache, "encoder": cache.cross_attention_cache}
    return [
        getattr(caches[side].layers[layer], f"{kind}s")
        for layer in range(len(cache.self_attention_cache.layers))
        for side, kind in (part.split(".") for part in parts)
    ]


def export_onnx(model: Any, tokenizer: Any, output: Path, quantization: str = "float32") -> list[str]:
    """Writes `encoder_model.onnx`, `decoder_model.onnx`, `decoder_with_past_model.onnx` and `decode.py`.

    Batch size and lengths are dynamic. `int8` quantizes weight matrices; activations stay float32.

    Returns:
        Remarks for the user.

    Raises:
        ConversionError: There is no such quantization, or the model writes from right to left.
    """
    if quantization not in QUANTIZATIONS:
        raise ConversionError(f"Quantization {quantization!r} is not available for ONNX: use float32 or int8.")
    refuse_right_to_left(model.config)
    output.mkdir(parents=True, exist_ok=True)
    with traceable(model):
        _export_graphs(model, output)
    if quantization == "int8":
        quantize_graphs(output)
    model.config.save_pretrained(output)
    savable(model.generation_config).save_pretrained(output)
    if not save_tokenizer(tokenizer, output):
        return ["decode.py is not included: it needs a tokenizer.json, which this model's tokenizer does not have."]
    shutil.copyfile(onnx_decode.__file__, output / "decode.py")
    (output / "README.md").write_text(_README.format(precision=_PRECISIONS[quantization]), encoding="utf-8")
    return []


@contextmanager
def traceable(model: Any) -> Iterator[None]:
    """Attention written out, evaluation mode, and no word of the libraries about what a user cannot change."""
    implementation, training = model.config._attn_implementation, model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        with silence(), torch.no_grad():
            yield
    finally:
        model.set_attn_implementation(implementation)
        model.train(training)


def _export_graphs(model: Any, output: Path) -> None:
    layers = range(model.config.decoder_layers)
    source = torch.zeros(2, 5, dtype=torch.long)
    mask = torch.ones_like(source)
    ids = {0: _BATCH, 1: _SOURCE}
    export_graph(
        Encode(model),
        (source, mask),
        (ids, ids),
        ["input_ids", "attention_mask"],
        ["last_hidden_state"],
        output / "encoder_model.onnx",
    )
    states = Encode(model)(source, mask)
    target = source[:, :3]
    export_graph(
        _Begin(model),
        (target, mask, states),
        ({0: _BATCH, 1: _TARGET}, ids, ids),
        ["input_ids", "encoder_attention_mask", "encoder_hidden_states"],
        ["logits", *(f"present.{layer}.{part}" for layer in layers for part in CACHE_PARTS)],
        output / "decoder_model.onnx",
    )
    _, *past = _Begin(model)(target, mask, states)
    shapes = [{0: _BATCH, 2: _PAST}] * 2 + [{0: _BATCH, 2: _SOURCE}] * 2
    export_graph(
        _GoOn(model),
        (target[:, :1], mask, past),
        ({0: _BATCH}, ids, shapes * len(layers)),
        [
            "input_ids",
            "encoder_attention_mask",
            *(f"past_key_values.{layer}.{part}" for layer in layers for part in CACHE_PARTS),
        ],
        ["logits", *(f"present.{layer}.{part}" for layer in layers for part in CACHE_PARTS[:2])],
        output / "decoder_with_past_model.onnx",
    )


def export_graph(
    module: nn.Module, inputs: tuple, shapes: tuple, input_names: list[str], output_names: list[str], path: Path
) -> None:
    """Writes one graph; `shapes` names the dimensions that are free."""
    program = torch.onnx.export(
        module.eval(),
        inputs,
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=input_names,
        output_names=output_names,
        verbose=False,
    )
    assert program is not None
    program.save(str(path))
