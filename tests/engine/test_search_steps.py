"""Each step of the search alone: score, rank, select, update, stop, and the cache that hypotheses share."""

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.engine import search, stacks
from vanilla_transformer.engine.linear import Weights
from vanilla_transformer.engine.search import (
    IMPOSSIBLE,
    BeamSearch,
    Hypotheses,
    Limits,
    best_continuations,
    may_improve,
)
from vanilla_transformer.engine.stacks import Decoder
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


def hypotheses(scores: list[list[float]], lengths: list[list[int]] | None = None, capacity: int = 4) -> Hypotheses:
    tensor = torch.tensor(scores)
    counts = torch.zeros_like(tensor, dtype=torch.long) if lengths is None else torch.tensor(lengths)
    return Hypotheses(tensor, torch.zeros(*tensor.shape, 2, capacity, dtype=torch.long), counts)


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


def test_search_stops_when_no_hypothesis_of_any_length_can_become_the_best():
    longest = 10
    best_ended = -2.0
    bound = best_ended * ((5 + longest) / 6) ** 0.6
    for score, expected in ((bound + 1e-3, True), (bound - 1e-3, False)):
        running, finished = hypotheses([[score, -99.0]]), hypotheses([[best_ended, IMPOSSIBLE]], [[3, 0]])
        assert may_improve(running, finished, 4, limits([longest])).tolist() == [expected]
    # All that are counted must have ended.
    assert may_improve(running, finished, 4, limits([longest], counted=2)).tolist() == [True]


@pytest.fixture
def model() -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=70, d_model=32, d_ff=48, num_heads=4, d_k=6, d_v=10, encoder_layers=1, decoder_layers=2
    )
    return VanillaTransformerForConditionalGeneration(config).eval()


@torch.no_grad()
def test_hypotheses_attend_to_their_ancestors_after_reordering(model, monkeypatch):
    """Against the whole decoder over each hypothesis's own tokens."""
    monkeypatch.setattr(stacks, "POSITIONS_AT_A_TIME", 3)
    random = torch.Generator().manual_seed(1)
    source = torch.randint(3, 70, (3, 5), generator=random)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    decoder = Decoder(model, Weights(torch.float32))
    encoded = model.model.encoder(input_ids=source, attention_mask=mask).last_hidden_state
    cache, width, sizes = decoder.start(encoded, mask), 3, []
    histories = torch.ones(3, 1, 1, dtype=torch.long)
    for position in range(24):
        logits = cache.step(histories[:, :, -1])
        rows = histories.flatten(0, 1)
        each = histories.shape[1]
        expected = model(
            input_ids=source.repeat_interleave(each, 0),
            attention_mask=mask.repeat_interleave(each, 0),
            decoder_input_ids=rows,
        ).logits[:, -1]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        parents = torch.randint(each, (len(source), width), generator=random)
        tokens = torch.randint(3, 70, (len(source), width), generator=random)
        histories = torch.cat(
            (histories.gather(1, parents[..., None].expand(-1, -1, position + 1)), tokens[..., None]), 2
        )
        cache.reorder(parents)
        sizes.append(cache.used)
        if position == 11:
            # The middle sentence leaves.
            left = torch.tensor([0, 2])
            cache.select(left)
            source, mask, histories = source[left], mask[left], histories[left]
    assert max(sizes) < 2 * 24, "slots without descendants are freed"
