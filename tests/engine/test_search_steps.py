"""The search ranks by blocks of scores what a full sort ranks, and keeps books of what it has written alone."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings, strategies as st
from small_models import inputs_of, random_model

from vanilla_transformer.engine import search
from vanilla_transformer.engine.search import IMPOSSIBLE, best_continuations


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    width=st.integers(1, 5),
    types=st.integers(12, 400),
    impossible=st.booleans(),
    by_blocks=st.booleans(),
)
def test_best_continuations_are_those_of_a_full_sort(seed, count, width, types, impossible, by_blocks):
    generator = torch.Generator().manual_seed(seed)
    log_p = torch.randn(3, width, types, generator=generator)
    scores = torch.randn(3, width, generator=generator)
    if impossible:
        # Ruled out, and best at a place in a block or behind the last whole one.
        scores[:, 1:] += IMPOSSIBLE
        log_p[:, :, -1] = 9.0
    expected = (log_p + scores[..., None]).flatten(1).topk(count)
    few = (0, 0) if by_blocks else (search.MAX_RANKED_VOCABULARY, search.MAX_RANKED_SCORES)
    with mock.patch.multiple(search, MAX_RANKED_VOCABULARY=few[0], MAX_RANKED_SCORES=few[1]):
        values, places = best_continuations(log_p, scores, count)
    torch.testing.assert_close(values, expected.values)
    if not impossible:
        assert torch.equal(places, expected.indices)
    picked = log_p.flatten(1).gather(1, places) + scores.gather(1, places // types)
    torch.testing.assert_close(picked, values)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_memory_follows_what_is_written_not_what_may_be(num_beams):
    model = random_model("translator")
    bias = {(model.config.eos_token_id,): 99.0}
    found = model.generate(
        **inputs_of("translator"), num_beams=num_beams, max_new_tokens=10**9, sequence_bias=bias, early_stopping=True
    )
    assert found.shape[1] < 9
