"""Runs that are killed."""

from collections.abc import Callable

import pytest

from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training import loop
from vanilla_transformer.training.loop import train


@pytest.fixture
def train_until(monkeypatch) -> Callable[[Recipe, int], int]:
    """Trains by a recipe until an interrupt at the given step; returns the epoch it was in."""

    def train_until(recipe: Recipe, step: int) -> int:
        update, epochs = loop.TrainingLoop._update, []

        def killed(self, *args):
            epochs.append(self.progress.epoch)
            if len(epochs) == step:
                raise KeyboardInterrupt
            return update(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(loop.TrainingLoop, "_update", killed)
            with pytest.raises(KeyboardInterrupt):
                train(recipe)
        return epochs[-1]

    return train_until
