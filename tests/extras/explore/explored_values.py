"""What a model computes in Python, value by value, under the names that the page has for them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn

from vanilla_transformer.checkpointing.store import MANIFEST
from vanilla_transformer.extras.explore.static_site import write_page
from vanilla_transformer.model.layers import MultiHeadAttention, PositionalEncoding


class Explored(NamedTuple):
    """A model and the folder of its page, which has the names of values with it."""

    model: Any
    tokenizer: Any
    folder: Path

    @classmethod
    def write(cls, model: Any, tokenizer: Any, folder: Path) -> "Explored":
        write_page(model, tokenizer, folder, name=folder.name, examples=["a dog"])
        shutil.copy(Path(__file__).with_suffix(".mjs"), folder)
        return cls(model, tokenizer, folder)


@contextmanager
def recorded(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The output of every module, by its name, and of each attention the weights, as `NAME.weights`."""
    values: dict[str, torch.Tensor] = {}

    def keep(name: str):
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(module, MultiHeadAttention):
                values[f"{name}.weights"] = output[1][0]
            elif isinstance(output, torch.Tensor):
                values[name] = output if isinstance(module, PositionalEncoding) else output[0]

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    if model.config.model_type != "recurrent_encoder_decoder":
        model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            yield values
    finally:
        for handle in handles:
            handle.remove()


def values_of(model: Any, source: list[int], target: list[int] | None = None) -> dict[str, list]:
    """All values of one forward pass, as lists of rows."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([source])}
    if target is not None:
        inputs |= {"decoder_input_ids": torch.tensor([target]), "output_attentions": True}
    with recorded(model) as values:
        outputs = model(**inputs)
    if target is not None and model.config.model_type == "recurrent_encoder_decoder":
        values = {"encoder": outputs.encoder_last_hidden_state[0]}
        if outputs.cross_attentions:
            values["weights"] = outputs.cross_attentions[0][0, 0]
    logits = torch.atleast_2d(outputs.logits[0]).tolist()
    return {"logits": logits, **{name: value.tolist() for name, value in values.items()}}


def run_of(model: torch.nn.Module, folder: Path, steps: list[int]) -> Path:
    """A run's directory whose weights grow with the steps."""
    for step in steps:
        place = folder / "checkpoints" / f"step-{step:08d}"
        place.mkdir(parents=True)
        weights = {name: weight.detach() * (1 + step / 100) for name, weight in model.named_parameters()}
        save_file(weights, place / "model.safetensors")
        files = {"model.safetensors": {"bytes": 1, "sha256": "0"}}
        (place / MANIFEST).write_text(json.dumps({"step": step, "resumable": False, "files": files}))
    (folder / "metrics.jsonl").write_text('{"step": 10, "loss": 2.5}\n{"step": 10, "dev_loss": 2.25}\n{"step"')
    return folder
