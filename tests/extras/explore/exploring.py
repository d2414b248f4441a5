"""Pages of small models, and a run whose training they replay."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from scripts.stress.explore import PAGE_VALUES
from vanilla_transformer.checkpointing.store import MANIFEST
from vanilla_transformer.extras.explore.static_site import write_page


class Explored(NamedTuple):
    """A model and the folder of its page, which has the names of values with it."""

    model: Any
    tokenizer: Any
    folder: Path

    @classmethod
    def write(cls, model: Any, tokenizer: Any, folder: Path) -> "Explored":
        write_page(model, tokenizer, folder, name=folder.name, examples=["a dog"])
        shutil.copy(PAGE_VALUES, folder)
        return cls(model, tokenizer, folder)


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
