"""Adds a task: translation whose sources lose other tokens in each epoch (word dropout; Iyyer et al. 2015).

    python examples/extend/task.py train.en train.de my-model

Registered, a task is trained like any other: prepared once, planned by lengths, resumed to the same weights. A process
that resumes or scores such a model has to import this file first, as a recipe knows a task by its name.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedConfig

from vanilla_transformer import Recipe, train
from vanilla_transformer.data.preparation import Rows
from vanilla_transformer.tasks import Batch, RowRandom, register_task
from vanilla_transformer.tasks.translation import Translation


class TranslationOfNoisyText(Translation):
    """Pairs of text, of whose sources one token in ten is left out."""

    name = "translation-of-noisy-text"

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """As of a translation; what is left out depends on the row and the epoch alone, so that a run can resume."""
        sources = []
        for place, ids in enumerate(rows["source"]):
            kept = rng[place].random(len(ids)) >= 0.1
            kept[-1] = True  # The end of the sentence.
            sources.append(np.asarray(ids)[kept])
        return super().collate({**rows, "source": sources}, rng, config)


register_task(TranslationOfNoisyText())


def main(argv: Sequence[str] | None = None) -> None:
    """Trains a model for the task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target", "output"):
        parser.add_argument(name)
    parser.add_argument("--max-steps", type=int)
    arguments = parser.parse_args(argv)
    recipe = Recipe.of(
        task=TranslationOfNoisyText.name,
        train=(arguments.source, arguments.target),
        max_steps=arguments.max_steps,
        output=arguments.output,
    )
    print(train(recipe).directory)


if __name__ == "__main__":
    main()
