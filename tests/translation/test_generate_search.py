"""Translation by `generate`: scores of hypotheses from one forward pass, and several threads."""

import threading

import pytest
import torch
from opus_models import write_opus
from searches import END, sharp
from small_models import random_model
from transformers import AutoTokenizer, MarianMTModel

from vanilla_transformer import Translator
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation import live_models
from vanilla_transformer.translation.ensemble import EnsembleForConditionalGeneration
from vanilla_transformer.translation.live_models import GenerateSearch, evaluating

ROWS = [[5, 9, 7, 8, END], [11, 4, END], [3, 12, 6, END]]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["a b"], vocab_size=260)


@pytest.fixture(autouse=True)
def few_logits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score few hypotheses at a time."""
    monkeypatch.setattr(live_models, "_LOGITS_TOGETHER", 1)


CALLS = {
    "the model's own": {},
    "huggingface": {"length_penalty_type": "huggingface", "length_penalty": 1.3, "max_new_tokens": 12},
    "several": {"num_beams": 3, "num_return_sequences": 3},
    "suppressed": {"suppress_tokens": [7, 30], "max_new_tokens": 9},
    "renormalized": {"bad_words_ids": [[7], [30]], "renormalize_logits": True},
    "forced end": {"forced_eos_token_id": END, "max_new_tokens": 4},
    "minimum": {"min_new_tokens": 5, "renormalize_logits": True},
    "repetition": {"repetition_penalty": 1.4},
    "few tokens": {"suppress_tokens": [0, *range(7, 150)], "max_new_tokens": 5, "num_return_sequences": 4},
    "forced at once": {"forced_eos_token_id": END, "max_new_tokens": 1, "num_return_sequences": 4},
    "first that end": {"early_stopping": True, "num_beams": 2},
}
BY_OUTPUT_SCORES = {"minimum", "repetition", "few tokens", "forced at once"}
MODELS = {"model": lambda: sharp(0), "ensemble": lambda: EnsembleForConditionalGeneration([sharp(0), sharp(1)])}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", CALLS)
def test_scores_are_those_of_the_search(kind: str, name: str, tokenizer, monkeypatch):
    model, call, asked = MODELS[kind](), CALLS[name], []
    generate = type(model).generate
    monkeypatch.setattr(type(model), "generate", lambda self, **given: asked.append(given) or generate(self, **given))
    found = [each for hypotheses in GenerateSearch(model, tokenizer, **call).search(ROWS) for each in hypotheses]
    assert asked[0].get("output_scores", False) == (name in BY_OUTPUT_SCORES)
    inputs = tokenizer.pad({"input_ids": ROWS}, return_tensors="pt")
    expected = generate(model, **inputs, **call, return_dict_in_generate=True, output_scores=True)
    scores = torch.tensor([each.score for each in found])
    torch.testing.assert_close(scores, expected.sequences_scores, atol=2e-5, rtol=0)
    for each, row in zip(found, expected.sequences.tolist(), strict=True):
        assert each.tokens == row[1 : len(each.tokens) + 1] and not any(row[len(each.tokens) + 1 :])


def test_a_model_without_an_end_token_is_translated_up_to_its_last_token(tokenizer):
    model = sharp(0)
    model.generation_config.eos_token_id = None
    model.generation_config.update(num_beams=1, length_penalty=None, early_stopping=None)
    [[found], *_] = GenerateSearch(model, tokenizer, max_new_tokens=5).search(ROWS)
    assert len(found.tokens) == 5


def test_scores_of_a_marian_model_are_those_of_its_search(tmp_path):
    directory = write_opus(tmp_path)
    model, tokenizer = MarianMTModel.from_pretrained(directory).eval(), AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(["the cat on", "Matte?"], return_tensors="pt", padding=True)
    expected = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
    rows = [row[mask.bool()].tolist() for row, mask in zip(inputs.input_ids, inputs.attention_mask, strict=True)]
    found = [hypotheses[0].score for hypotheses in GenerateSearch(model, tokenizer).search(rows)]
    torch.testing.assert_close(torch.tensor(found), expected.sequences_scores, atol=2e-5, rtol=0)


def test_a_model_is_in_evaluation_mode_as_long_as_any_thread_translates():
    model = random_model("translator").train()
    model.model.encoder.eval()
    before = [module.training for module in model.modules()]
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with evaluating(model):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(60)
    with evaluating(model):
        leave.set()
        thread.join()
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


def test_threads_that_translate_with_a_model_in_training_mode_find_the_same(tokenizer):
    model = sharp(0, vocab_size=260, dropout=0.5).train()
    lines = [f"a b {number}" for number in range(12)]
    translator = Translator(model, tokenizer, no_repeat_ngram_size=3, batch_tokens=20)
    expected = [each.text for each in translator(lines)]
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([each.text for each in translator(lines)])) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3 and model.training
