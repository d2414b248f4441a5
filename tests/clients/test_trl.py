"""TRL: what is learned with its trainers ends where its texts end."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import vanilla_transformer  # noqa: F401  registers the Auto classes

trl = pytest.importorskip("trl", reason="TRL is not installed.")


def test_sft_on_three_lines_learns_to_end(directories: dict[str, Path], tmp_path: Path):
    """TRL adds `</s>` to a text as a string: a tokenizer that spells it out would never show the model its id."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(directories["decoder"])
    tokenizer = AutoTokenizer.from_pretrained(directories["decoder"])
    settings = trl.SFTConfig(
        output_dir=str(tmp_path),
        max_steps=60,
        learning_rate=5e-3,
        per_device_train_batch_size=3,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    texts = Dataset.from_dict({"text": ["Hello king", "the cat sat", "a dog ran"]})
    trl.SFTTrainer(model, args=settings, train_dataset=texts, processing_class=tokenizer).train()
    prompt = tokenizer("Hello", return_tensors="pt")
    written = model.eval().generate(**prompt, max_new_tokens=12, do_sample=False)[0]
    assert written[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(written, skip_special_tokens=True).strip() == "Hello king"
