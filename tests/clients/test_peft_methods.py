"""PEFT: what five of its methods have learned stays when it is merged, saved and loaded, in each family."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAMILIES, build

peft = pytest.importorskip("peft", reason="PEFT is not installed.")
VOCABULARY = 48
IDS = torch.tensor([[5, 9, 7, 8, 6, 30], [11, 4, 12, 2, 7, 9]])
METHODS: dict[str, dict[str, Any]] = {
    "LoraConfig": {"r": 4, "lora_alpha": 8},
    "DoRA": {"r": 4, "lora_alpha": 8, "use_dora": True},
    "LoHaConfig": {"r": 4, "alpha": 8},
    "LoKrConfig": {"r": 4, "alpha": 8},
    "IA3Config": {},
}


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    two_sides = family in ("encoder-decoder", "recurrent")
    return {"input_ids": IDS, "labels": IDS.flip(1) if two_sides else IDS}


def linear_layers(model: torch.nn.Module) -> list[str]:
    """All but the output projection, which is the embedding."""
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    return [name for name in names if not name.endswith("lm_head")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_merging_saving_and_loading_keep_the_adaptation(family: str, method: str, tmp_path: Path):
    model, inputs = build(family, VOCABULARY), inputs_of(family)
    before = model(**inputs).logits
    targets = linear_layers(model)
    kind = "LoraConfig" if method == "DoRA" else method
    fields = {"feedforward_modules": []} if kind == "IA3Config" else {}
    adapted = peft.get_peft_model(model, getattr(peft, kind)(target_modules=targets, **fields, **METHODS[method]))
    optimizer = torch.optim.Adam([one for one in adapted.parameters() if one.requires_grad], lr=2e-2)
    for _ in range(5):
        adapted(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    learned = adapted.eval()(**inputs).logits
    assert (learned - before).abs().max() > 1e-2
    adapted.save_pretrained(tmp_path / "adapter")
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    loaded, report = type(model).from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not any(report.values())
    again = peft.PeftModel.from_pretrained(build(family, VOCABULARY), tmp_path / "adapter").eval()
    for one in (merged, loaded, again):
        torch.testing.assert_close(one.eval()(**inputs).logits, learned, atol=1e-4, rtol=0)
