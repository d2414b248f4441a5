"""Adapters of PEFT on the attention projections and on the embedding."""

import subprocess
import sys

import pytest
import torch

from vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
)

peft = pytest.importorskip("peft", reason="PEFT is not installed.")

SOURCE = torch.tensor([[5, 9, 7, 8, 2], [11, 4, 2, 0, 0]])
LABELS = torch.tensor([[6, 3, 12, 2], [9, 2, -100, -100]])
INPUTS = {"input_ids": SOURCE, "attention_mask": (SOURCE != 0).long(), "labels": LABELS}
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "out_proj"]


@pytest.fixture
def adapted(tiny_model):
    """The model with adapters that were trained for some steps; everything else stayed frozen."""
    torch.manual_seed(0)
    model = peft.get_peft_model(
        tiny_model, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=8, target_modules=PROJECTIONS)
    )
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    losses = []
    for _ in range(15):
        loss = model.train()(**INPUTS).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]
    trained = dict(model.named_parameters())
    assert all(torch.equal(trained[name], before) for name, before in frozen.items())
    return model.eval()


def test_adapters_sit_on_every_attention_projection_and_nowhere_else(adapted):
    sublayers = 2 + 2 * 2  # One attention in each encoder layer, two in each decoder layer.
    trainable = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(trainable) == sublayers * len(PROJECTIONS) * 2
    assert all("lora_" in name for name in trainable)


def test_merged_adapters_are_a_plain_model_with_the_same_logits(adapted, tmp_path):
    expected = adapted(**INPUTS).logits
    found = adapted.generate(input_ids=SOURCE, attention_mask=INPUTS["attention_mask"])
    merged = adapted.merge_and_unload()
    assert type(merged) is VanillaTransformerForConditionalGeneration
    torch.testing.assert_close(merged(**INPUTS).logits, expected, atol=1e-5, rtol=0)
    merged.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**INPUTS).logits, expected, atol=1e-5, rtol=0)
    assert torch.equal(loaded.generate(input_ids=SOURCE, attention_mask=INPUTS["attention_mask"]), found)


def test_saved_adapters_are_put_on_the_base_model_again(adapted, tiny_config, tmp_path):
    adapted.save_pretrained(tmp_path / "adapter")
    expected = adapted(**INPUTS).logits
    base = adapted.unload()
    base.save_pretrained(tmp_path / "base")
    assert (base(**INPUTS).logits - expected).abs().max() > 1e-2
    loaded = peft.PeftModel.from_pretrained(
        VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    torch.testing.assert_close(loaded(**INPUTS).logits, expected, atol=1e-5, rtol=0)


def test_the_models_own_adapter_methods_work(adapted, tmp_path):
    adapted.save_pretrained(tmp_path / "adapter")
    expected = adapted(**INPUTS).logits
    adapted.unload().save_pretrained(tmp_path / "base")
    model = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "base")
    model.load_adapter(tmp_path / "adapter")
    torch.testing.assert_close(model(**INPUTS).logits, expected, atol=1e-5, rtol=0)
    model.disable_adapters()
    assert (model(**INPUTS).logits - expected).abs().max() > 1e-2


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["shared"]},
        {"target_modules": ["shared"], "use_dora": True},
        {"target_modules": PROJECTIONS, "trainable_token_indices": [5, 9, 6]},
        {"target_modules": PROJECTIONS, "trainable_token_indices": {"shared": [5, 9, 6]}},
        {"target_modules": PROJECTIONS, "modules_to_save": ["shared"]},
    ],
    ids=["LoRA", "DoRA", "tokens", "tokens by name", "whole"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_merging_an_adapted_embedding_changes_no_logits(tiny_model, settings):
    """The output projection is the embedding too, while it is adapted as when it is merged."""
    before = tiny_model(**INPUTS).logits
    model = peft.get_peft_model(tiny_model, peft.LoraConfig(r=4, lora_alpha=8, **settings))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    for skip_logits in (True, False) * 4:
        model(**INPUTS, skip_logits=skip_logits).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    learned = model(**INPUTS)
    torch.testing.assert_close(model(**INPUTS, skip_logits=True).loss, learned.loss)
    assert (learned.logits - before).abs().max() > 0.5
    translation = model.generate(input_ids=SOURCE, attention_mask=INPUTS["attention_mask"])
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(**INPUTS).logits, learned.logits, atol=1e-4, rtol=0)
    assert torch.equal(merged.generate(input_ids=SOURCE, attention_mask=INPUTS["attention_mask"]), translation)


@pytest.mark.parametrize("kind", ["LoraConfig", "AdaLoraConfig", "IA3Config", "LNTuningConfig"])
def test_targets_need_not_be_named(tiny_model, kind):
    settings = {"total_step": 10} if kind == "AdaLoraConfig" else {}
    model = peft.get_peft_model(tiny_model, getattr(peft, kind)(task_type="SEQ_2_SEQ_LM", **settings))
    assert any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("order", ["vanilla_transformer, peft", "peft, vanilla_transformer"])
def test_targets_are_known_whatever_is_imported_first(order):
    """And PEFT is not imported for them."""
    seen = f"import sys, {order}; from peft.utils import constants; " + (
        "print(constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING['vanilla_transformer'])"
    )
    found = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert found.stdout == "['q_proj', 'v_proj']\n"


@pytest.mark.parametrize("whole", ["shared", "lm_head"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_merged_adapter_that_untied_the_embedding_is_saved_whole(tiny_model, whole, tmp_path):
    config = peft.LoraConfig(r=4, target_modules=PROJECTIONS, modules_to_save=[whole])
    model = peft.get_peft_model(tiny_model, config)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    for _ in range(3):
        model(**INPUTS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    merged = model.merge_and_unload().eval()
    merged.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(**INPUTS).logits, merged(**INPUTS).logits)
