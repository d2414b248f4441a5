"""Pages of small models and the values that pages and models compute, and a run whose training they replay."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn

from vanilla_transformer.explore.static_site import write_page
from vanilla_transformer.model.modeling_vanilla_transformer import MultiHeadAttention, PositionalEncoding

# What the page computes, under the names that it has in Python: a module that is put into the page's folder.
PAGE_VALUES = Path(__file__).with_name("explore_values.mjs")
ASK = """async ({ call, calls }) => {
  const { app } = await import('/app.js'), values = await import('/explore_values.mjs');
  return Promise.all(calls.map((args) => values[call](app.model, ...args)));
}"""


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
        weights = {name: weight.detach() * (1 + step / 100) for name, weight in model.named_parameters()}
        file = folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors"
        file.parent.mkdir(parents=True)
        save_file(weights, file, metadata={"format": "pt"})
        file.with_name("checkpoint.json").write_text(json.dumps({"progress": {"step": step}}))
    (folder / "metrics.jsonl").write_text('{"step": 10, "loss": 2.5}\n{"step": 10, "dev_loss": 2.25}\n{"step"')
    return folder


def ask(page: Any, call: str, calls: list[tuple]) -> list[Any]:
    """Returns what a function of `explore_values.mjs` gives, once for each list of arguments."""
    return page.evaluate(ASK, {"call": call, "calls": calls})


@contextmanager
def recorded(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Collects the input and output of every module, as `NAME.input` and `NAME`, and the weights of each attention."""
    values: dict[str, torch.Tensor] = {}

    def keep(name: str):
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if args and isinstance(args[0], torch.Tensor):
                values[f"{name}.input"] = args[0][0]
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
    """Returns all values of one forward pass, as lists of rows."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([source])}
    if target is not None:
        inputs |= {"decoder_input_ids": torch.tensor([target]), "output_attentions": True}
    with recorded(model) as values:
        outputs = model(**inputs)
    if target is not None and model.config.model_type == "recurrent_encoder_decoder":
        values = {"encoder": outputs.encoder_last_hidden_state[0]}
        if outputs.cross_attentions:
            values["weights"] = outputs.cross_attentions[0][0, 0]
    else:
        attentions = [name.removesuffix(".weights") for name in values if name.endswith(".weights")]
        values |= {f"{name}.scores": scores_of(model, name, values) for name in attentions}
    logits = torch.atleast_2d(outputs.logits[0]).tolist()
    return {"logits": logits, **{name: value.tolist() for name, value in values.items()}}


def scores_of(model: Any, name: str, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns QKᵀ / √d_k of each head, from the model's own Q and K; masked as -1e9."""
    q, k = (values[f"{name}.{kind}_proj"].unflatten(-1, (-1, model.config.d_k)).transpose(0, 1) for kind in "qk")
    scores = q @ k.mT * model.config.d_k**-0.5
    encodes = model.config.model_type == "vanilla_transformer_encoder" or ".encoder." in name
    if encodes or "cross_attention" in name:
        return scores
    return scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -1e9)


def log_probabilities(model: Any, source: list[int], targets: list[list[int]]) -> list[float]:
    """Returns the log-probability of each target, from one forward pass over all of them."""
    start = [] if model.config.is_encoder_decoder is False else [model.config.decoder_start_token_id]
    before = start or source
    rows = [[*before, *target] for target in targets]
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    sources = torch.tensor([source]).expand(len(rows), -1)
    with torch.no_grad():
        outputs = model(input_ids=sources, decoder_input_ids=ids) if start else model(input_ids=ids)
    logp = outputs.logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    first = len(before) - 1
    return [row[first : first + len(target)].sum().item() for row, target in zip(logp, targets, strict=True)]
