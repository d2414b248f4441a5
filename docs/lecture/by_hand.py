"""What the lecture's chapters share: a result is shown only if it is the one worked out by hand."""

import numpy as np
from IPython.display import Math, display


def check(name, computed, by_hand):
    """Shows a vector or matrix as a formula; fails unless each number is the one worked out by hand."""
    computed, by_hand = np.atleast_2d(np.array(computed, float)), np.atleast_2d(np.array(by_hand, float))
    assert computed.shape == by_hand.shape, (computed.shape, by_hand.shape)
    np.testing.assert_allclose(computed, by_hand, rtol=0, atol=5.1e-5)
    rows = r"\\".join("&".join(_decimals(value) for value in row) for row in computed)
    display(Math(rf"{name} = \begin{{pmatrix}}{rows}\end{{pmatrix}}"))


def _decimals(value):
    """Four decimals at most, and 0 without a sign."""
    return r"-\infty" if value == -np.inf else f"{round(value, 4) + 0.0:.4f}".rstrip("0").rstrip(".")


def softmax(scores):
    """Along the last axis. Subtracting the largest score changes nothing but keeps exponentials small."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
