"""The interface of a task: all that training has to know of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import Indices, Lengths
from vanilla_transformer.data.preparation import Encoder, Rows
from vanilla_transformer.recipe.defaults import Architecture
from vanilla_transformer.recipe.schema import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.data.text_streams import TextStream
    from vanilla_transformer.evaluation.metrics import Score
    from vanilla_transformer.evaluation.scoring import Processes

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


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Tells whether `<s>` begins a text, whether `</s>` ends it, and whether there is a `<mask>`."""

    begins: bool = False
    ends: bool = True
    mask_token: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's prediction for a row of text.

    Attributes:
        label: What is compared with a reference.
        line: The same for people, with its score, in one line.
        values: The same for machines.
        truncated: Whether the row was too long for the model, and was cut.
    """

    label: str
    line: str
    values: dict[str, Any]
    truncated: bool = False


class Predictor(Protocol):
    """A model with its settings that predicts; what predicts is as `Task.predictor` makes it.

    Attributes:
        chunk_lines: Rows that are best predicted together.
    """

    chunk_lines: int

    def read(self, line: str) -> tuple[str, ...]:
        """A row of text from a line of it, without what is to be predicted."""

    def predict(self, rows: Sequence[tuple[str, ...]], progress: Callable[[int], object]) -> Sequence[Prediction]:
        """A prediction for each row, in order; `progress` is told how many rows are done since it was told last."""


class Evaluated(Protocol):
    """A model's results on a corpus: its scores, and a prediction for each row."""

    @property
    def scores(self) -> "list[Score]":
        """Of each metric."""

    @property
    def predictions(self) -> list[str]:
        """A line for each row."""

    def as_json(self) -> dict[str, Any]:
        """The figures beside the scores."""

    def in_words(self) -> list[str]:
        """The same in sentences."""


class Task(Architecture, Protocol):
    """A task that a run trains for, with what most of them do. Nothing else in the package asks which task it is.

    Attributes:
        name: How a recipe calls it.
        form: The columns of text that it reads, and what its rows are called.
        columns: Names of the columns of ids that it makes of them, one or two; batches are planned by their lengths.
        special_tokens: Which of them stand in its texts.
        auto_class: The Auto class of `transformers` that loads its models.
        pipeline: Name of the pipeline of `transformers` that its models work in, also their tag on the Hub.
        metrics: What `dev` and `test` are scored by where a recipe does not say.
        item: What an item of the loss is, in the plural.
        loss: What the loss of an item is counted in, such as nats.
        use: What its models are for, as a card begins to say it.

    Two rules keep a resumed run bit-exact, and a run of several processes the same as one: how many items of the loss
    a row has follows from its lengths alone, and `collate` draws random numbers from `rng` alone.
    """

    name: str
    columns: tuple[str, ...]
    special_tokens: SpecialTokens
    auto_class: str
    pipeline: str
    item: str
    loss: str
    use: str

    def of_recipe(self, recipe: Recipe) -> "Task":
        """The task as the recipe has it: itself, but where a recipe chooses between kinds of text."""
        return self

    def check(self, recipe: Recipe) -> None:
        """Refuses, before any text is read, what the recipe asks for and the task cannot do.

        Raises:
            ValueError: Names what, and what there is.
        """

    def complete(self, recipe: Recipe, corpora: "Mapping[str, Sequence[TextStream]]") -> Recipe:
        """The recipe with what the text itself decides of it, such as the labels.

        Args:
            recipe: What it says already stays.
            corpora: Those of `train`, `dev` and `test`.

        Raises:
            ValueError: A row cannot be used; the message says where it stands.
        """
        return recipe

    def encoder(self, recipe: Recipe) -> Encoder:
        """The encoding of text as ids for a complete recipe."""

    def vocabulary_columns(self, recipe: Recipe) -> tuple[str, ...]:
        """The columns of text that a vocabulary is learned from."""

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """The model that the recipe describes, with random weights and the settings that it is to be saved with.

        Its `forward` takes what `collate` returns, `num_items_in_batch` (the items of all batches of the step, which
        the summed loss is divided by) and `skip_logits`, and returns an output that has a `loss`.
        """

    def items(self, *lengths: Lengths) -> Lengths:
        """The number of items that each row adds to the loss; `lengths` are (rows,) for each of `columns`."""

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads rows to a batch for the model.

        Without rows the batch is one whose loss is zero: a process that has nothing to do in a step goes through the
        same motions as the others.
        """

    def examples(self, corpus: "Dataset") -> int:
        """The number of texts that `evaluate` asks the model about."""
        return len(corpus)

    def sample(self, corpus: "Dataset", texts: int) -> "Dataset":
        """So many of the texts that `evaluate` would ask about, evenly spaced; all where asking costs little."""
        return corpus

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object],
        processes: "Processes | None" = None,
        **settings: Any,
    ) -> Evaluated:
        """A `Score` for each of the metrics on a corpus of its form; `settings` are for how it predicts.

        Args:
            progress: Called with the number of texts done since the last call.
            processes: This one, the main process, and those that call `evaluate_worker`.
        """

    def evaluate_worker(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        processes: "Processes",
        **settings: Any,
    ) -> None:
        """Predicts a part of the corpus for the main process, which calls `evaluate` with the same arguments."""

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, batch_tokens: int | None = None
    ) -> Predictor:
        """The model, ready to predict.

        Raises:
            ValueError: It is for another command; the message says for which.
        """

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """The model's predictions for some examples."""
