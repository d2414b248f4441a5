"""Writes the explorer: a folder for any static host, whose page runs the model and contacts no other host."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.explore.browser_tokenizer import tokenizer_config, tokenizer_parts
from vanilla_transformer.explore.computable import WRITERS, family, fields
from vanilla_transformer.explore.packing import (
    MAX_BYTES,
    Tensor,
    checkpoints_that_fit,
    learning_curve,
    pack,
    pack_8_bits,
)
from vanilla_transformer.graph.settings import limit_of_new_tokens, not_followed, with_defaults, words
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.model_directory import CHECKPOINTS
from vanilla_transformer.translation.live_models import evaluating

_WEB = Path(__file__).parent / "web"
# Texts for a model whose card has no examples.
_EXAMPLES = {"masked-language-model": "A <mask> waits."}
_SHOWN_LIKELIEST = 5
# Settings of `generate` that the explorer's search follows, or that do not affect what it shows.
_FOLLOWED = words(
    "early_stopping length_penalty length_penalty_type max_length max_length_beyond_source max_new_tokens num_beams "
    "num_return_sequences pad_token_id renormalize_logits"
)
# Number of tokens that a language model generates.
_CONTINUATION = 24
_README = """---
{head}---

# {name}, computed before your eyes

Any host of static files can serve this folder. On your own machine, run `python -m http.server` and open
http://localhost:8000. The model runs in the visitor's browser, so what a visitor writes is not sent to any host. The
folder `model` contains the weights. The folder `vendor` contains D3 (ISC licence), tokenizers.js (Apache-2.0) and the
font STIX Two Math (SIL Open Font License) with their licences. The other files are the explorer's own JavaScript,
which is readable as it is.
"""


def write_page(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    *,
    name: str,
    examples: Sequence[str] = (),
    run: Path | None = None,
    documentation: str | None = None,
    report: Callable[[str], None] = lambda remark: None,
) -> None:
    """Writes the folder.

    Args:
        output: A directory that is empty or does not exist.
        model: The model.
        tokenizer: Its tokenizer.
        name: The heading.
        examples: Texts that the explorer offers. It opens with the first one.
        run: The directory of the model's training run, whose checkpoints and log the explorer replays.
        documentation: The address of the documentation, for links from each number to its chapter.
        report: Called with each way in which the explorer differs from the model.

    Raises:
        ModelError: The explorer does not support the model or its tokenizer.
    """
    kind = family(model)
    tokenizer = plain_text(tokenizer)
    parts = tokenizer_parts(tokenizer)
    settings = model.generation_config.to_diff_dict() if kind in WRITERS and model.generation_config else {}
    ignored = not_followed(settings, model.config.to_dict(), _FOLLOWED)
    if ignored:
        report(f"The explorer ignores {', '.join(ignored)} in the model's generation_config.json.")
    examples = list(examples) or [_EXAMPLES.get(kind) or _some_text(tokenizer)]
    check = _check(model, tokenizer, examples[0])
    with atomic_directory(output, "page", last="index.html") as place:
        for file in filter(Path.is_file, _WEB.rglob("*")):
            (place / file.relative_to(_WEB)).parent.mkdir(exist_ok=True)
            shutil.copyfile(file, place / file.relative_to(_WEB))
        folder = place / "model"
        folder.mkdir()
        places, weights = pack(model.state_dict())
        (folder / "weights.bin").write_bytes(weights)
        about = {
            "name": name,
            "family": kind,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "config": fields(model.config),
            "search": _search(model, settings) if kind in WRITERS else None,
            "tokenizer": [parts, tokenizer_config(tokenizer, parts)],
            "tokens": _tokens(tokenizer, model.config),
            "pieces": _pieces(tokenizer, model.config.vocab_size),
            "tensors": {key: list(place) for key, place in places.items()},
            "examples": examples,
            "documentation": documentation,
            "check": check,
            "training": _training(model, places, len(weights), run, folder, report) if run is not None else None,
        }
        (folder / "model.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
        head = {"title": name, "emoji": "🔎", "sdk": "static", "app_file": "index.html"}
        text = yaml.safe_dump(head, allow_unicode=True, sort_keys=False)
        (place / "README.md").write_text(_README.format(head=text, name=name), encoding="utf-8")


def _some_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns a word that the tokenizer can read, for a model whose card has no example."""
    readable = tokenizer.unk_token_id not in tokenizer("hello")["input_ids"]
    return "hello" if readable else str(tokenizer.decode([len(tokenizer) - 1]))


def _tokens(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> dict[str, object]:
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return {
        "start": getattr(config, "decoder_start_token_id", None),
        "ends": [end for end in ends if end is not None],
        "mask": tokenizer.mask_token_id if tokenizer.mask_token else None,
        "special": sorted(set(tokenizer.all_special_ids)),
    }


def _pieces(tokenizer: PreTrainedTokenizerBase, count: int) -> list[str]:
    """Returns each token of the vocabulary in readable text, with spaces as dots."""
    special = set(tokenizer.all_special_ids)
    pieces = []
    for number in range(count):
        raw = tokenizer.convert_ids_to_tokens(number) if number < len(tokenizer) else None
        if raw is None or number in special:
            pieces.append(str(raw or f"<{number}>"))
            continue
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        # A token that is not the first keeps its leading space.
        text = decoder.decode([raw, raw])[len(decoder.decode([raw])) :] if decoder is not None else raw
        text = raw if "\ufffd" in text or not text else text
        pieces.append(re.sub("[ \u0120\u2581]", "·", str(text)))
    return pieces


def _search(model: Any, settings: Mapping[str, Any]) -> dict[str, object]:
    """Returns the model's own settings of the search, which the explorer starts with."""
    given = with_defaults(settings)
    return {
        "width": given["num_beams"],
        "alpha": float(given["length_penalty"]),
        "google": given["length_penalty_type"] == "google",
        "early": given["early_stopping"],
        "beyond": given.get("max_length_beyond_source"),
        "most": limit_of_new_tokens(settings) if model.config.is_encoder_decoder else _CONTINUATION,
    }


def _check(model: Any, tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, object]:
    """Returns the model's values for the first example, with which the explorer checks its own values."""
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    target = None
    with evaluating(model), torch.no_grad():
        if model.config.is_encoder_decoder:
            target = model.generate(**inputs, num_return_sequences=1, return_dict_in_generate=False)
            logits = model(**inputs, decoder_input_ids=target[:, :-1]).logits[0]
        else:
            logits = model(**inputs).logits[0]
    likeliest = torch.atleast_2d(logits).float().topk(min(_SHOWN_LIKELIEST, logits.shape[-1]), dim=-1)
    return {
        "text": text,
        "source": inputs["input_ids"][0].tolist(),
        "target": None if target is None else target[0].tolist(),
        "likeliest": likeliest.indices.tolist(),
        "logits": likeliest.values.tolist(),
    }


def _training(
    model: PreTrainedModel,
    places: Mapping[str, Tensor],
    weights: int,
    run: Path,
    folder: Path,
    report: Callable[[str], None],
) -> dict[str, object] | None:
    """Writes the weights of checkpoints that fit, and returns their steps and the run's learning curve."""
    steps, size = [], len(pack_8_bits(model.state_dict(), places))
    for checkpoint in checkpoints_that_fit(run, size, MAX_BYTES - weights):
        packed = pack_8_bits(load_file(checkpoint.path / "model.safetensors"), places)
        (folder / f"step-{checkpoint.step}.bin").write_bytes(packed)
        steps.append(checkpoint.step)
    curve = learning_curve(run)
    if not steps and (run / CHECKPOINTS).is_dir():
        report(
            "The explorer does not replay the training, because there are no checkpoints or the model's weights "
            "leave no room for them."
        )
    return {"steps": steps, "curve": curve} if steps or curve else None
