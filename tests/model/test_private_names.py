"""Undocumented names of transformers, each taken away: the library's own path is taken, with one warning."""

import functools
import importlib
import inspect
import types
from collections.abc import Callable

import pytest
import torch
import transformers
from refusals import refused
from searches import INPUTS, Google, sharp
from transformers import GenerationConfig, GenerationMixin, Pipeline
from transformers.generation import utils as generation_utils
from transformers.utils import logging as transformers_logging

from vanilla_transformer import VanillaTransformerTokenizer, VanillaTransformerTranslationPipeline, registration
from vanilla_transformer.engine import calls, gate
from vanilla_transformer.model import generation_vanilla_transformer as generation

HOOKS = ["_beam_search", "_sample", "_maybe_prepare_encoder_kwargs_for_generation"]
TENSOR_SETTINGS = ["_eos_token_tensor", "_pad_token_tensor"]


@pytest.fixture
def warned(library_log: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Warnings of the package, each once."""
    transformers_logging.warning_once.cache_clear()
    return lambda: [record.getMessage() for record in library_log.records if "vanilla_transformer" in record.name]


def renamed(code: types.CodeType, name: str, new: str) -> types.CodeType:
    """The same code with another name for an attribute or an argument."""
    constants = [renamed(part, name, new) if isinstance(part, types.CodeType) else part for part in code.co_consts]

    def other(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if part == name else part for part in names)

    return code.replace(co_consts=tuple(constants), co_names=other(code.co_names), co_varnames=other(code.co_varnames))


def rename_in_the_library(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes a version of the library in which something undocumented is called otherwise."""
    new = f"{name}_renamed"
    for attribute, value in list(vars(GenerationMixin).items()):
        function = inspect.unwrap(value) if callable(value) else value
        if isinstance(function, types.FunctionType):
            monkeypatch.setattr(function, "__code__", renamed(function.__code__, name, new))
        if attribute == name:
            monkeypatch.setattr(GenerationMixin, new, value, raising=False)
            monkeypatch.delattr(GenerationMixin, name)
    modes = {mode: new if method == name else method for mode, method in MODES.items()}
    monkeypatch.setattr(generation_utils, "GENERATION_MODES_MAPPING", modes)


MODES = dict(generation_utils.GENERATION_MODES_MAPPING)


def searched(**asked):
    return sharp(0).generate(**INPUTS, max_new_tokens=6, return_dict_in_generate=True, output_scores=False, **asked)


@pytest.mark.parametrize("name", HOOKS + TENSOR_SETTINGS)
def test_the_librarys_search_is_used_without_a_name(monkeypatch, name: str):
    searches = ({}, {"num_beams": 1}, {"num_beams": 3, "length_penalty": 1.7, "length_penalty_type": "huggingface"})
    expected = [searched(**asked).sequences for asked in searches]
    rename_in_the_library(monkeypatch, name)
    for asked, sequences in zip(searches, expected, strict=True):
        assert torch.equal(searched(**asked).sequences, sequences)
    if name != "_maybe_prepare_encoder_kwargs_for_generation":
        with refused(ValueError, "int8", name):
            sharp(0).generate(**INPUTS, quantization="int8")


@pytest.mark.parametrize("name", ["_beam_search"])
def test_googles_penalty_holds_in_the_librarys_search_too(monkeypatch, name: str):
    asked = {"num_beams": 4, "max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    expected = sharp(0).generate(**INPUTS, **asked).sequences_scores
    rename_in_the_library(monkeypatch, name)
    torch.testing.assert_close(sharp(0).generate(**INPUTS, **asked).sequences_scores, expected)
    given = GenerationConfig(**asked, length_penalty=1.4)
    theirs = sharp(0)
    theirs.generation_config = GenerationConfig(
        **asked, length_penalty=Google(1.4), early_stopping="never", eos_token_id=2, pad_token_id=0, bos_token_id=1
    )
    theirs.generation_config.length_penalty_type = "huggingface"
    torch.testing.assert_close(
        sharp(0).generate(**INPUTS, generation_config=given).sequences_scores,
        theirs.generate(**INPUTS, decoder_start_token_id=1).sequences_scores,
    )


@pytest.mark.parametrize(
    "name",
    [
        "MinLengthLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "LogitNormalization",
        "SuppressTokensLogitsProcessor",
    ],
)
def test_a_processor_of_another_name_is_left_to_the_library(monkeypatch, name: str):
    asked = {"min_new_tokens": 3, "min_length": 3, "bad_words_ids": [[21]], "renormalize_logits": True}
    expected = searched(**asked).sequences
    monkeypatch.delattr(transformers, name)
    before = dict(vars(gate))
    try:
        importlib.reload(gate)
        assert torch.equal(searched(**asked).sequences, expected)
    finally:
        vars(gate).update(before)


@pytest.mark.parametrize("attribute", ["suppress_tokens", "sequence_bias"])
def test_a_processor_that_is_built_otherwise_is_asked_itself(monkeypatch, attribute: str):
    processor = {
        "suppress_tokens": transformers.SuppressTokensLogitsProcessor([21, 43]),
        "sequence_bias": transformers.NoBadWordsLogitsProcessor([[21], [43]], eos_token_id=2),
    }[attribute]
    assert calls._suppression(processor) is not None
    delattr(processor, attribute)
    assert calls._suppression(processor) is None


def test_tasks_are_registered_without_the_list_of_removed_ones(monkeypatch, warned):
    pipelines = transformers.pipelines
    monkeypatch.delattr(pipelines, "REMOVED_TASKS")
    monkeypatch.setattr(pipelines, "_resolve_deprecated_task", lambda task: task)
    registry = pipelines.PIPELINE_REGISTRY
    monkeypatch.setattr(registry, "check_task", functools.partial(type(registry).check_task, registry))
    registration._register_pipelines()
    assert pipelines.check_task("translation_en_to_de")[0] == "translation"
    assert not warned()


def test_a_library_that_takes_no_tasks_from_a_package_says_so_once(monkeypatch, warned):
    pipelines = transformers.pipelines

    def removed(task: str) -> str:
        raise KeyError(f"The task {task} has been removed")

    monkeypatch.delattr(pipelines, "REMOVED_TASKS")
    monkeypatch.setattr(pipelines, "_resolve_deprecated_task", removed)
    monkeypatch.setattr(pipelines.PIPELINE_REGISTRY, "check_task", pipelines.PIPELINE_REGISTRY.check_task)
    registration._register_pipelines()
    registration._register_pipelines()
    (warning,) = warned()
    assert "call VanillaTransformerTranslationPipeline(model=..., tokenizer=...) in its place" in warning


def test_a_pipeline_generates_without_the_librarys_preparation(monkeypatch, warned):
    tokenizer = VanillaTransformerTokenizer.train(["the cat on the mat"] * 3, vocab_size=270)
    translate = VanillaTransformerTranslationPipeline(model=sharp(0, vocab_size=len(tokenizer)), tokenizer=tokenizer)
    expected = translate("the cat", num_beams=2, max_new_tokens=4)
    monkeypatch.delattr(Pipeline, "_prepare_generate_kwargs")
    assert translate("the cat", num_beams=2, max_new_tokens=4) == expected
    (warning,) = warned()
    assert "has no Pipeline._prepare_generate_kwargs, on which vanilla_transformer relies: give the" in warning


def test_every_override_of_the_library_is_known():
    """An override of something undocumented is of use only where the library asks for it."""
    mixins = [*generation.PaperGenerationMixin.__mro__, *generation.CausalGenerationMixin.__mro__]
    ours = [mixin for mixin in mixins if mixin.__module__ == generation.__name__]
    overridden = {name for mixin in ours for name in vars(mixin) if name in vars(GenerationMixin)}
    documented = {"generate", "prepare_inputs_for_generation", "adjust_generation_fn", "__module__", "__doc__"}
    assert overridden - documented == set(HOOKS)
    assert set(gate._TENSOR_SETTINGS) == set(TENSOR_SETTINGS)
