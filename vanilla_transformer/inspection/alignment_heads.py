"""Chooses the heads from which a model's alignments are read, on text without labels.

The reference is the prediction difference of Li et al. 2019: how much less likely a target token becomes when one
source token is masked. It takes a forward pass per source token, too slow to align much text, so attention heads that
agree with it are chosen instead.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.onnx_file import NAME, renew
from vanilla_transformer.inspection.alignment import STEPS, Aligner, AlignmentHeads, Side, every_head
from vanilla_transformer.inspection.recording import eager_attention

# The agreement that one more head must add: the pairs are few, and gains by chance are smaller than this.
_GAIN = 0.01
# Masked copies of a source that are computed together.
_ROWS = 64


@dataclass(frozen=True)
class ChosenHeads:
    """The heads that were chosen.

    Attributes:
        agreement: The share of the prediction difference that they point at; 1 if they always point at the source
            token without which the target token is least likely.
    """

    heads: AlignmentHeads
    agreement: float
    pairs: int


def choose_alignment_heads(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], targets: Sequence[str]
) -> ChosenHeads:
    """Chooses the heads, and the step, whose mean attention agrees most with the prediction difference on these pairs.

    For each step, starts with the head that agrees most, and adds the head that raises the agreement most as long as
    it rises by more than a hundredth.

    Raises:
        ModelError: The model has no attention over the source, or no pair has anything to align by.
    """
    aligner = Aligner(model, tokenizer)
    pairs = aligner.pairs(sources, targets)
    pairs = [pair for pair in pairs if all(len(side.places) > 1 for side in pair)]
    if not pairs:
        raise ModelError("Heads are chosen on pairs of at least two tokens on each side, but there are none.")
    differences = [prediction_difference(aligner, *pair) for pair in pairs]
    if not sum(difference.sum() for difference in differences) > 0:
        raise ModelError("No head can be chosen: on these pairs, no target token needs any source token.")
    choices = []
    for step in STEPS:
        every = every_head(model)
        attended = aligner.attention(pairs, AlignmentHeads(every, step))
        chosen, agreement = _forward_selection(attended, differences)
        heads = tuple(sorted(every[place] for place in chosen))
        choices.append(ChosenHeads(AlignmentHeads(heads, step), agreement, len(pairs)))
    return max(choices, key=lambda choice: choice.agreement)


def _forward_selection(
    attended: Sequence[torch.Tensor], differences: Sequence[torch.Tensor]
) -> tuple[list[int], float]:
    """Returns the places of the chosen heads, and their agreement."""
    rest, best = list(range(len(attended[0]))), -1.0
    chosen: list[int] = []
    while rest:
        scores = {
            place: _agreement([weights[[*chosen, place]].mean(0) for weights in attended], differences)
            for place in rest
        }
        place = max(rest, key=lambda one: scores[one])
        if scores[place] <= best + _GAIN:
            break
        rest.remove(place)
        chosen, best = [*chosen, place], scores[place]
    return chosen, best


def prediction_difference(aligner: Aligner, source: Side, target: Side) -> torch.Tensor:
    """Returns the gain of each target token's log-probability from each source token, (target, source), at least 0."""
    inputs = aligner.inputs([(source, target)])
    columns, rows = source.places, target.places
    written = torch.tensor([target.ids[row] for row in rows], device=aligner.model.device)
    masks = inputs["attention_mask"].repeat(len(columns) + 1, 1)
    masks[torch.arange(len(columns)) + 1, columns] = 0
    likely = []
    with eager_attention(aligner.model), torch.no_grad():
        for some in masks.split(_ROWS):
            count = len(some)
            logits = aligner.model(
                input_ids=inputs["input_ids"].expand(count, -1),
                attention_mask=some,
                decoder_input_ids=inputs["decoder_input_ids"].expand(count, -1),
                use_cache=False,
            ).logits[:, rows]
            likely.append(logits.float().log_softmax(-1).gather(2, written.expand(count, -1)[..., None])[..., 0].cpu())
    whole, *without = torch.cat(likely)
    return (whole - torch.stack(without)).T.clamp(min=0)


def _agreement(weights: Sequence[torch.Tensor], differences: Sequence[torch.Tensor]) -> float:
    """Returns the share of the largest differences that lies where the weights are largest."""
    got = sum(
        difference.gather(1, one.argmax(1, keepdim=True)).sum()
        for one, difference in zip(weights, differences, strict=True)
    )
    return float(got / sum(difference.max(1).values.sum() for difference in differences))


def save_alignment_heads(directory: str | Path, model: PreTrainedModel, heads: AlignmentHeads) -> None:
    """Saves the heads in the generation config of a directory, and in that of the loaded model."""
    settings, file = model.generation_config, Path(directory, "generation_config.json")
    assert settings is not None
    chosen = {
        "alignment_heads": [[layer - 1, head - 1] for layer, head in heads.heads],  # From 0, as Whisper's.
        "alignment_step": heads.step,
    }
    vars(settings).update(chosen)
    values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else settings.to_diff_dict()
    atomic_write_text(file, json.dumps(values | chosen, indent=2, sort_keys=True) + "\n")
    if Path(directory, NAME).exists():
        renew(Path(directory))  # The ONNX graph belongs to these settings.
