"""The equations of the recurrent models, by hand on numbers that can be followed."""

import math

import torch

from vanilla_transformer.recurrent.recurrent_equations import (
    additive_score,
    local_window,
    maxout,
    multiplicative_score,
)


def test_scores_by_hand():
    query = torch.tensor([[[1.0, 0.0]]])
    keys = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    assert multiplicative_score(query, keys).tolist() == [[[1.0, 0.0, 1.0]]]
    # vᵀ tanh(q + k): tanh 2 = 0.9640, tanh 1 = 0.7616.
    added = additive_score(query, keys, torch.tensor([1.0, 2.0]))
    expected = [0.96403, 0.76159 + 2 * 0.76159, 0.96403 + 2 * 0.76159]
    torch.testing.assert_close(added, torch.tensor([[expected]]), atol=1e-4, rtol=0)


def test_the_window_of_local_attention_by_hand():
    # p = 2.5 and D = 2, so σ = 1: exp(-0.5 (s - 2.5)²) for s from 1 to 4, and 0 beyond.
    window = local_window(torch.tensor([[2.5]]), torch.arange(7)[None], 2)
    expected = [0.0, math.exp(-1.125), math.exp(-0.125), math.exp(-0.125), math.exp(-1.125), 0.0, 0.0]
    torch.testing.assert_close(window, torch.tensor([[expected]]))


def test_maxout_takes_the_larger_of_two_neighbours():
    assert maxout(torch.tensor([1.0, 3.0, -2.0, -5.0])).tolist() == [3.0, -2.0]
