"""What each model computes on a device is what it computes on the processor, and the host does not wait for it."""

import copy
from contextlib import nullcontext

import pytest
import torch
from second_device import NAME
from small_models import HEADS, IDS, MASK, inputs_of, random_model

from vanilla_transformer import RecurrentEncoderDecoderConfig, RecurrentEncoderDecoderForConditionalGeneration
from vanilla_transformer.loading.models import move

RECURRENT = ["recurrent lstm luong-general", "recurrent gru bahdanau", "recurrent gru none"]
WRITERS = ["translator", "language-model", "recurrent lstm luong-general"]


def model_of(kind: str) -> torch.nn.Module:
    if kind in HEADS:
        return random_model(kind)
    torch.manual_seed(0)
    fields = dict(zip(("cell", "attention"), kind.split()[1:], strict=True))
    config = RecurrentEncoderDecoderConfig(vocab_size=48, d_model=32, num_layers=2, dropout=0.0, **fields)
    return RecurrentEncoderDecoderForConditionalGeneration(config).eval()


def batch(kind: str) -> dict[str, torch.Tensor]:
    inputs = inputs_of(kind if kind in HEADS else "translator")
    if kind == "masked-language-model":
        inputs["labels"][:, ::2] = -100
        inputs["label_positions"] = (inputs["labels"] != -100).flatten().nonzero().squeeze(1)
    return inputs


def two_steps(model, inputs, device, waits=None):
    """Returns the losses of two steps, read at their end, and the waits of the second."""
    model, inputs = move(model, device).train(), {key: part.to(device) for key, part in inputs.items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=device in ("cpu", "cuda"))
    without = {} if hasattr(model, "classifier") else {"skip_logits": True}
    losses = []

    def step() -> None:
        loss = model(**inputs, num_items_in_batch=17, **without).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    step()
    with nullcontext() if waits is None else waits() as listed:
        step()
    return [loss.item() for loss in losses], listed


@pytest.mark.parametrize("kind", [*HEADS, *RECURRENT])
def test_losses_are_the_processors_and_a_step_waits_for_nothing(kind, device, waits):
    model, inputs = model_of(kind), batch(kind)
    expected, _ = two_steps(copy.deepcopy(model), inputs, "cpu")
    losses, listed = two_steps(model, inputs, device, waits)
    assert losses == pytest.approx(expected, rel=1e-5 if device == NAME else 1e-3)
    if kind in RECURRENT:
        # torch packs sequences by lengths that it reads on the processor.
        assert all("modeling_recurrent" in wait for wait in listed)
        assert len(listed) <= 4
    else:
        assert listed == []


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("settings", [{"num_beams": 4}, {"num_beams": 1}, {"num_beams": 2, "no_repeat_ngram_size": 2}])
def test_a_search_finds_what_it_finds_on_the_processor(kind, settings, device):
    model, found = model_of(kind), []
    inputs = {"input_ids": IDS.flip(1), "attention_mask": MASK.flip(1)}  # A language model's padding stands first.
    for place in ("cpu", device):
        model, there = move(model, place), {key: part.to(place) for key, part in inputs.items()}
        found.append(model.generate(**there, max_new_tokens=12, **settings).cpu())
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_waits_at_most_once_a_token(kind, num_beams, device, waits):
    model, ids = move(model_of(kind), device), IDS.to(device)

    def waits_of(tokens: int) -> int:
        with waits() as listed:
            model.generate(ids, num_beams=num_beams, max_new_tokens=tokens, min_new_tokens=tokens)
        return len(listed)

    waits_of(4)
    assert waits_of(24) - waits_of(8) <= 16


def test_a_moved_model_keeps_its_one_embedding(device):
    model = move(model_of("translator"), device)
    assert model.lm_head.weight is model.model.shared.weight
    assert model.model.decoder.embed_tokens is model.model.shared
