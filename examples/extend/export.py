"""Adds an export: a language model as NumPy arrays, and forty lines that compute with them alone.

    python examples/extend/export.py my-language-model my-model.npz

An export computes a model without its `forward`, so it must support every part of it. `unsupported_part` names the
first part that the package's own model does not have, and the export stops instead of leaving that part out.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from transformers import AutoModelForCausalLM, PreTrainedModel

from vanilla_transformer import VanillaTransformerDecoderForCausalLM
from vanilla_transformer.loading.standard_models import unsupported_part

# Besides exact classes and parameters, values that the computation below takes for granted.
REQUIRED = {"activation_function": "relu", "positional_encoding": "sinusoidal"}
SIZES = ("d_model", "num_heads", "decoder_layers", "layer_norm_eps")


class ExportError(ValueError):
    """A model that this export cannot write."""


def export(model: PreTrainedModel, file: str | Path) -> None:
    """Writes the weights and sizes of a language model.

    Raises:
        ExportError: It has a part that `next_token_logits` does not compute.
    """
    reason = unsupported_part(model, activations=["relu"])
    if reason is None and not isinstance(model, VanillaTransformerDecoderForCausalLM):
        reason = f"{type(model).__name__}, which is no language model"
    for name, value in REQUIRED.items():
        if reason is None and getattr(model.config, name) != value:
            reason = f"{name} = {getattr(model.config, name)!r}"
    if reason is not None:
        raise ExportError(f"This export does not know {reason}.")
    sizes = {name: getattr(model.config, name) for name in SIZES}
    weights = {name: weight.detach().float().numpy() for name, weight in model.named_parameters()}
    np.savez(file, sizes=json.dumps(sizes), **weights)


def next_token_logits(arrays: Mapping[str, np.ndarray], ids: Sequence[int]) -> np.ndarray:
    """Returns the logits of each position's next token, (length, vocabulary), from the arrays of a file."""
    sizes = json.loads(str(arrays["sizes"]))
    width, heads, epsilon = sizes["d_model"], sizes["num_heads"], sizes["layer_norm_eps"]
    embedding = arrays["model.embed_tokens.weight"]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ arrays[f"{name}.weight"].T + arrays.get(f"{name}.bias", 0)

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return (
            x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]
        )

    def by_head(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)

    angles = np.arange(len(ids))[:, None] * 10000.0 ** -(np.arange(0, width, 2) / width)
    x = embedding[list(ids)] * width**0.5 + np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(ids), width)
    for number in range(sizes["decoder_layers"]):
        layer = f"model.layers.{number}"
        q, k, v = (by_head(linear(f"{layer}.self_attention.{part}_proj", x)) for part in "qkv")
        scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = norm(f"{layer}.self_attention_norm", x + linear(f"{layer}.self_attention.out_proj", attended))
        inner = np.maximum(linear(f"{layer}.feed_forward.w_1", x), 0)
        x = norm(f"{layer}.feed_forward_norm", x + linear(f"{layer}.feed_forward.w_2", inner))
    return x @ arrays.get("lm_head.weight", embedding).T + arrays.get("lm_head.bias", 0)


def main(argv: Sequence[str] | None = None) -> None:
    """Exports a model and prints the size of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args(argv)
    export(AutoModelForCausalLM.from_pretrained(arguments.model), arguments.file)
    print(f"{arguments.file}: {arguments.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
