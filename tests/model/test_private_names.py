"""Undocumented names of transformers, each taken away: the library's own path is taken, with one warning."""

import inspect
import types

import pytest
import torch
from searches import INPUTS, sharp
from transformers import GenerationMixin
from transformers.generation import utils as generation_utils

HOOKS = ["_beam_search", "_sample", "_maybe_prepare_encoder_kwargs_for_generation"]
TENSOR_SETTINGS = ["_pad_token_tensor"]


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
