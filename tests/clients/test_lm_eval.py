"""lm-evaluation-harness: a language model of the package is scored on a task that lies beside it."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import vanilla_transformer  # noqa: F401  registers the Auto classes

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed.")
CHOICES = [" sat", " ran", " king"]
PROMPTS = ["the cat", "a dog", "Hello"]


def test_a_language_model_is_scored_on_a_task(directories: dict[str, Path], tmp_path: Path):
    """The likelihoods by which the harness chooses are the model's own."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    rows = [{"prompt": prompt, "choices": CHOICES, "answer": place} for place, prompt in enumerate(PROMPTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "which_word",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    model = AutoModelForCausalLM.from_pretrained(directories["decoder"])
    tokenizer = AutoTokenizer.from_pretrained(directories["decoder"])
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=64, device="cpu")
    found = lm_eval.simple_evaluate(harness, tasks=[task], task_manager=TaskManager(), bootstrap_iters=0)

    def likelihood(prompt: str, choice: str) -> float:
        start = len(tokenizer(prompt)["input_ids"])
        ids = torch.tensor([tokenizer(prompt + choice)["input_ids"]])
        with torch.no_grad():
            scores = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
        return float(scores[start - 1 :].sum())

    samples = sorted(found["samples"]["which_word"], key=lambda sample: sample["doc_id"])
    for prompt, sample in zip(PROMPTS, samples, strict=True):
        for choice, answer in zip(CHOICES, sample["filtered_resps"], strict=True):
            assert math.isclose(float(answer[0]), likelihood(prompt, choice), abs_tol=1e-3)
