"""What each model computes on a device is what it computes on the processor, and the host does not wait for it."""

import copy

import pytest
import torch
from second_device import NAME

import vanilla_transformer as vt
from vanilla_transformer.translation.loading import move

VOCABULARY = 120
SIZES = {"vocab_size": VOCABULARY, "d_model": 32, "d_ff": 64, "num_heads": 4, "dropout": 0.0}
MODELS = {
    "encoder-decoder": lambda **more: vt.VanillaTransformerForConditionalGeneration(
        vt.VanillaTransformerConfig(**SIZES, encoder_layers=2, decoder_layers=2, **more)
    ),
    "language model": lambda: vt.VanillaTransformerDecoderForCausalLM(
        vt.VanillaTransformerDecoderConfig(**SIZES, decoder_layers=2)
    ),
    "masked language model": lambda: vt.VanillaTransformerEncoderForMaskedLM(
        vt.VanillaTransformerEncoderConfig(**SIZES, encoder_layers=2)
    ),
    "classifier": lambda: vt.VanillaTransformerEncoderForSequenceClassification(
        vt.VanillaTransformerEncoderConfig(**SIZES, encoder_layers=2, num_labels=3)
    ),
    "tagger": lambda: vt.VanillaTransformerEncoderForTokenClassification(
        vt.VanillaTransformerEncoderConfig(**SIZES, encoder_layers=2, num_labels=3)
    ),
    **{
        f"recurrent {cell} {attention}": lambda cell=cell, attention=attention: (
            vt.RecurrentEncoderDecoderForConditionalGeneration(
                vt.RecurrentEncoderDecoderConfig(
                    vocab_size=VOCABULARY, d_model=32, num_layers=2, dropout=0.0, cell=cell, attention=attention
                )
            )
        )
        for cell, attention in (("lstm", "luong-general"), ("gru", "bahdanau"), ("gru", "none"))
    },
}


def batch(name: str) -> dict[str, torch.Tensor]:
    """Makes a batch with padding in sources and targets."""
    random = torch.Generator().manual_seed(1)
    ids, mask = torch.randint(4, VOCABULARY, (4, 9), generator=random), torch.ones(4, 9, dtype=torch.long)
    mask[1, 6:] = mask[2, 4:] = 0
    labels = torch.randint(4, VOCABULARY, (4, 7), generator=random)
    labels[0, 5:] = labels[1, 6:] = -100
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if name in ("language model", "masked language model", "tagger"):
        labels = torch.where(mask == 1, ids % 3 if name == "tagger" else ids, -100)
    if name == "masked language model":
        labels[:, ::2] = -100
        inputs["label_positions"] = (labels != -100).flatten().nonzero().squeeze(1)
    return {**inputs, "labels": torch.tensor([0, 1, 2, 1]) if name == "classifier" else labels}


def two_steps(model, inputs, device, waits=None):
    """Returns the losses of two steps, read at their end, and the waits of the second."""
    model, inputs = move(model, device).train(), {key: part.to(device) for key, part in inputs.items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=device in ("cpu", "cuda"))
    without = {} if hasattr(model, "classifier") else {"skip_logits": True}
    losses, listed = [], []

    def step() -> None:
        loss = model(**inputs, num_items_in_batch=17, **without).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    step()
    if waits is None:
        step()
    else:
        with waits() as listed:
            step()
    return [loss.item() for loss in losses], listed


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_processors_and_a_step_waits_for_nothing(name, device, waits):
    torch.manual_seed(0)
    model, inputs = MODELS[name](), batch(name)
    expected, _ = two_steps(copy.deepcopy(model), inputs, "cpu")
    losses, listed = two_steps(model, inputs, device, waits)
    assert losses == pytest.approx(expected, rel=1e-5 if device == NAME else 1e-3)
    if name.startswith("recurrent"):
        # torch packs sequences by lengths that it reads on the processor.
        assert all("modeling_recurrent" in wait for wait in listed)
        assert len(listed) <= 4
    else:
        assert listed == []


def generating(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().eval()


@pytest.mark.parametrize("name", ["encoder-decoder", "language model", "recurrent lstm luong-general"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("settings", [{"num_beams": 4}, {"num_beams": 1}, {"num_beams": 2, "no_repeat_ngram_size": 2}])
def test_a_search_finds_what_it_finds_on_the_processor(name, frozen, settings, device):
    model, inputs = generating(name), batch("encoder-decoder")
    del inputs["labels"]
    if name == "language model":
        inputs = {key: part.flip(1) for key, part in inputs.items()}
    found = []
    for place in ("cpu", device):
        model, there = move(model, place), {key: part.to(place) for key, part in inputs.items()}
        if frozen:
            with model.frozen():
                found.append(model.generate(**there, max_new_tokens=12, **settings).cpu())
        else:
            found.append(model.generate(**there, max_new_tokens=12, **settings).cpu())
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["encoder-decoder", "language model", "recurrent lstm luong-general"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_waits_at_most_once_a_token(name, num_beams, device, waits):
    model = move(generating(name), device)
    ids = torch.randint(4, VOCABULARY, (4, 9)).to(device)

    def waits_of(tokens: int) -> int:
        with waits() as listed:
            model.generate(ids, num_beams=num_beams, max_new_tokens=tokens, min_new_tokens=tokens)
        return len(listed)

    waits_of(4)
    assert waits_of(24) - waits_of(8) <= 16


def test_a_moved_model_keeps_its_one_embedding(device):
    model = move(generating("encoder-decoder"), device)
    assert model.lm_head.weight is model.model.shared.weight
    assert model.model.decoder.embed_tokens is model.model.shared
