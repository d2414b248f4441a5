"""The equations of the recurrent models: by hand on numbers that can be followed, and beside torch's own layers."""

import math

import pytest
import torch

from vanilla_transformer.recurrent.recurrent_equations import (
    additive_score,
    gru_step,
    local_window,
    lstm_step,
    maxout,
    multiplicative_score,
)


@pytest.mark.parametrize(("kind", "step"), [(torch.nn.LSTM, lstm_step), (torch.nn.GRU, gru_step)])
def test_steps_are_those_of_torch(kind, step):
    torch.manual_seed(0)
    layer = kind(3, 5, batch_first=True)
    words = torch.randn(2, 4, 3)
    expected, _ = layer(words)
    state = (torch.zeros(2, 5),) * (2 if kind is torch.nn.LSTM else 1)
    for place in range(4):
        gates = torch.nn.functional.linear(words[:, place], layer.weight_ih_l0, layer.bias_ih_l0)
        state = step(gates, state, layer.weight_hh_l0, layer.bias_hh_l0)
        torch.testing.assert_close(state[0], expected[:, place])


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
