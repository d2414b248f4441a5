"""What the lecture's chapters share: a result is shown only if it is the one worked out by hand."""

import re

import numpy as np
from IPython.display import Math, display


def check(name, computed, by_hand):
    """Shows a vector or matrix as a formula; fails unless each number is the one worked out by hand."""
    computed, by_hand = np.atleast_2d(np.array(computed, float)), np.atleast_2d(np.array(by_hand, float))
    assert computed.shape == by_hand.shape, (computed.shape, by_hand.shape)
    np.testing.assert_allclose(computed, by_hand, rtol=0, atol=5.1e-5)
    display(Math(f"{name} = {_matrix(computed)}"))


def given(**inputs):
    """Shows inputs side by side; a capital after the bar stands above: W1_Q is read as W_1^Q."""
    names = {name: re.sub(r"_([A-Z])", r"^\1", re.sub(r"^(\w)(\d)", r"\1_\2", name)) for name in inputs}
    display(Math(r"\quad ".join(f"{names[name]} = {_matrix(values)}" for name, values in inputs.items())))


def _matrix(values):
    """A formula in which the numbers of a column have equally many decimals, at most four."""
    values = np.round(np.atleast_2d(np.array(values, float)), 4) + 0.0  # No zero has a sign.
    digits = [max(len(f"{value:.4f}".rstrip("0").partition(".")[2]) for value in column) for column in values.T]
    texts = (
        ("-\\infty" if value == -np.inf else f"{value:.{n}f}" for value, n in zip(row, digits, strict=True))
        for row in values
    )
    rows = r"\\".join("&".join(row) for row in texts)
    return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"


def softmax(scores):
    """Along the last axis. Subtracting the largest score changes nothing but keeps exponentials small."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
