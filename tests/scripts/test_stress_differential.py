"""`generate` is the library's own on settings drawn at random; `python -m scripts.stress.differential` draws 1,000."""

import copy
from collections import Counter

import pytest
from transformers import MaxLengthCriteria

from scripts.stress.differential import compared, draw_setting
from vanilla_transformer.engine import library_calls
from vanilla_transformer.engine.linear import Weights
from vanilla_transformer.engine.requests import Request
from vanilla_transformer.model.generation import PaperGenerationMixin

TOGETHER = 10


@pytest.mark.parametrize("first", range(0, 80, TOGETHER))
def test_generate_is_the_librarys_own(first: int):
    ways: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        way, told = compared(draw_setting(seed))
        assert told is None, f"python -m scripts.stress.differential --seed {seed} --settings 1: {told}"
        ways[way] += 1
    assert ways["engine"]


def test_a_seed_draws_the_same_setting_and_all_kinds_are_drawn():
    drawn = [draw_setting(seed) for seed in range(400)]
    assert drawn[7] == draw_setting(7)
    for name in ("implementation", "own", "form", "masked", "by", "allowed", "prompt_mask", "static", "edit"):
        kinds = Counter(getattr(setting, name) for setting in drawn)
        assert len(kinds) > 1 and min(kinds.values()) > 3, kinds
    assert {kind for setting in drawn for kind, _ in setting.criteria} == {"length", "ends", "string", "time", "own"}
    assert {kind for setting in drawn for kind, _ in setting.processors} == {"without", "repetition", "top k"}
    assert any([0] * len(row) == row for setting in drawn for row in setting.source)


def ignored_criteria(monkeypatch) -> None:
    limits = Request.limits

    def without(request, prompts):
        kept = [
            MaxLengthCriteria(request.settings.max_length) if type(part) is MaxLengthCriteria else part
            for part in request.stopping_criteria
        ]
        return limits(request._replace(stopping_criteria=kept), prompts)

    monkeypatch.setattr(Request, "limits", without)


def penalty_of_the_library_in_objects(monkeypatch) -> None:
    generate = PaperGenerationMixin.generate

    def without(self, inputs=None, generation_config=None, *args, **kwargs):
        if generation_config is not None:
            kwargs = {"length_penalty_type": "huggingface", **kwargs}
        return generate(self, inputs, generation_config, *args, **kwargs)

    monkeypatch.setattr(PaperGenerationMixin, "generate", without)


def stale_weights(monkeypatch) -> None:
    kept: dict = {}
    make = library_calls.Decoder

    def stale(model, weights):
        # A model of these tests is asked twice at most.
        copied = copy.deepcopy(model) if type(weights) is Weights else model
        return kept.setdefault(id(model), (model, make(copied, weights)))[1]

    monkeypatch.setattr(library_calls, "Decoder", stale)


@pytest.mark.parametrize("fault", [ignored_criteria, penalty_of_the_library_in_objects, stale_weights])
def test_a_fault_is_found(monkeypatch, fault):
    fault(monkeypatch)
    assert any(compared(draw_setting(seed))[1] for seed in range(100))
