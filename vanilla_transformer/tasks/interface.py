"""What a task is: all that training has to know of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import Indices, Lengths
from vanilla_transformer.data.preparation import Encoder, Rows
from vanilla_transformer.recipe.defaults import Architecture
from vanilla_transformer.recipe.schema import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.evaluation.metrics import Score

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RowRandom:
    """Random numbers for each row of a batch: the same ones for a row of an epoch, whatever batch it comes in.

    So a resumed run, and one of another number of processes, draws what an uninterrupted one would have drawn.
    """

    seed: int
    epoch: int
    rows: Indices

    def __getitem__(self, place: int) -> np.random.Generator:
        """The generator of the row at that place of the batch, always from its beginning."""
        sequence = np.random.SeedSequence([self.seed, self.epoch], spawn_key=(int(self.rows[place]),))
        return np.random.default_rng(sequence)


class Task(Encoder, Architecture, Protocol):
    """What a run trains for. Nothing else in the package asks which task it is.

    Attributes:
        name: How a recipe calls it.
        text_columns: Names of the columns of text that it reads.
        columns: Names of the columns of ids that it makes of them, one or two; batches are planned by their lengths.
        auto_class: The Auto class of `transformers` that loads its models.
        pipeline: Name of the pipeline of `transformers` that its models work in, also their tag on the Hub.
        metrics: What `dev` and `test` are scored by where a recipe does not say.

    Two rules keep a resumed run bit-exact, and a run of several processes the same as one: how many items of the loss
    a row has follows from its lengths alone, and `collate` draws random numbers from `rng` alone.
    """

    auto_class: str
    pipeline: str
    metrics: tuple[str, ...]

    def check(self, recipe: Recipe) -> None:
        """Refuses, before any text is read, what the recipe asks for and the task cannot do.

        Raises:
            ValueError: Names what, and what there is.
        """

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """The model that the recipe describes, with random weights and the settings that it is to be saved with.

        Its `forward` takes what `collate` returns, `num_items_in_batch` (the items of all batches of the step, which
        the summed loss is divided by) and `skip_logits`, and returns an output that has a `loss`.
        """

    def items(self, *lengths: Lengths) -> Lengths:
        """How many items each row adds to the loss; `lengths` are (rows,) for each of `columns`."""

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads rows to a batch for the model.

        Without rows the batch is one whose loss is zero: a process that has nothing to do in a step goes through the
        same motions as the others.
        """

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        name: str,
    ) -> "list[Score]":
        """A `Score` for each of the metrics on a corpus of `text_columns`, called `name` in the progress bar."""

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """What the model makes of each of some examples."""
