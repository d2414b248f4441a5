"""Each step of the search alone: score, rank, select, update, stop, and the cache that hypotheses share."""

from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer.engine import search
from vanilla_transformer.engine.search import (
    IMPOSSIBLE,
    BeamSearch,
    Limits,
    best_continuations,
)
from vanilla_transformer.model.generation_vanilla_transformer import GoogleLengthPenalty

END = 2


def limits(lengths: list[int], **changes) -> Limits:
    tensor = torch.tensor(lengths)
    plain = Limits(
        end_tokens=torch.tensor([END]),
        candidates=8,
        lengths=tensor,
        horizon=tensor,
        counted=1,
        length_penalty=GoogleLengthPenalty(0.6),
        early_stopping="never",
    )
    return plain._replace(**changes)


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
    few = (0, 0) if by_blocks else (search.SMALL_VOCABULARY, search.FEW_SCORES)
    with mock.patch.multiple(search, SMALL_VOCABULARY=few[0], FEW_SCORES=few[1]):
        found = best_continuations(log_p, scores, count)
    torch.testing.assert_close(found.scores, expected.values)
    if not impossible:
        assert torch.equal(found.parents * types + found.tokens, expected.indices)
    picked = log_p[torch.arange(3)[:, None], found.parents, found.tokens] + scores.gather(1, found.parents)
    torch.testing.assert_close(picked, found.scores)


class Fixed:
    """A decoding whose next tokens have the same log-probabilities whatever was read."""

    def __init__(self, logits_V: list[float]) -> None:
        self.logits_V = torch.tensor(logits_V)

    def read(self, tokens_NP: torch.Tensor) -> None: ...

    def reorder(self, parents_NW: torch.Tensor) -> None: ...

    def select(self, sentences: torch.Tensor) -> None: ...

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        return self.logits_V.repeat(tokens_NW.numel(), 1)


def test_a_search_without_a_possible_token_ends():
    beam = BeamSearch(Fixed([0.0] * 7), torch.tensor([[1], [1]]), 2, limits([9, 9], candidates=4))
    beam.process = lambda ids, scores: torch.full_like(scores, -torch.inf)
    assert beam.run().lengths.tolist() == [[0, 0], [0, 0]]
