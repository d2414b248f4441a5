"""The search ranks by blocks of scores what a full sort ranks."""

from unittest import mock

import torch
from hypothesis import given, settings, strategies as st

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
        found = best_continuations(log_p, scores, count)
    torch.testing.assert_close(found.scores, expected.values)
    if not impossible:
        assert torch.equal(found.parents * types + found.tokens, expected.indices)
    picked = log_p[torch.arange(3)[:, None], found.parents, found.tokens] + scores.gather(1, found.parents)
    torch.testing.assert_close(picked, found.scores)
