"""The interface of a task: everything that training needs to know of it."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.cost import training_flops
from vanilla_transformer.data.batching import Indices, Lengths
from vanilla_transformer.data.columns import Row
from vanilla_transformer.data.preparation import Encoder
from vanilla_transformer.data.token_corpus import Rows
from vanilla_transformer.recipe.defaults import Architecture
from vanilla_transformer.recipe.schema import Recipe

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.evaluation.scoring import Evaluation

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RowRandom:
    """Random numbers for each row of a batch: a row of an epoch gets the same ones in any batch.

    So a resumed run, or one with another number of processes, draws the same as an uninterrupted one.
    """

    seed: int
    epoch: int
    rows: Indices

    def __getitem__(self, place: int) -> np.random.Generator:
        """Returns the generator of the row at that place of the batch, always from its start."""
        sequence = np.random.SeedSequence([self.seed, self.epoch], spawn_key=(int(self.rows[place]),))
        return np.random.default_rng(sequence)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special tokens of a text: whether `<s>` begins it, whether `</s>` ends it, and whether there is a `<mask>`."""

    begins: bool = False
    ends: bool = True
    mask_token: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's prediction for a row of text.

    Attributes:
        label: The part that is compared with a reference.
        line: The prediction with its score in one line, for people.
        values: The prediction for machines.
        truncated: Whether the row was cut because it was too long for the model.
    """

    label: str
    line: str
    values: dict[str, Any]
    truncated: bool = False


class Predictor(Protocol):
    """A model with its settings, ready to predict; `Task.predictor` makes it.

    Attributes:
        chunk_lines: Number of rows best predicted together.
    """

    chunk_lines: int

    @abstractmethod
    def read(self, line: str) -> Row:
        """Makes a row of text from a line, without the column to be predicted."""

    @abstractmethod
    def predict(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Sequence[Prediction]:
        """Predicts each row, in order; `progress` receives the number of rows done since its last call."""


class Task(Architecture, Protocol):
    """A task that a run trains for, with the behaviour most tasks share. No other code asks which task it is.

    Attributes:
        name: Its name in a recipe.
        form: The columns of text that it reads, and the word for its rows.
        special_tokens: Special tokens in its texts.
        auto_class: The Auto class of `transformers` that loads its models.
        translates: Whether its models turn a source into a target, so that several can do so together.
        pipeline: Name of the pipeline of `transformers` that its models work in, also their tag on the Hub.
        metrics: Metrics of `dev` and `test` unless a recipe names others.
        item: Name of an item of the loss, in the plural.
        use: The purpose of its models, as a model card begins to describe it.
        verb: Name of the pipeline's result, as a card's example calls it.
        command: The command for its models; empty if there is none.
        example: A text for the pipeline, as a card shows it if the recipe has none.

    Two rules keep a resumed run bit-exact, and a run of several processes the same as a run of one: the number of loss
    items in a row follows from its lengths alone, and `collate` draws random numbers from `rng` alone.
    """

    name: str
    special_tokens: SpecialTokens
    auto_class: str
    translates: bool = False
    pipeline: str
    item: str
    use: str
    verb: str = "model"
    command: str = ""
    example: str = "..."

    def of_recipe(self, recipe: Recipe) -> "Task":
        """Returns the task for a recipe: itself, unless a recipe chooses between kinds of text."""
        return self

    def of_config(self, config: PreTrainedConfig) -> "Task":
        """Returns the task that a saved model was trained for: itself, unless it was one of several kinds."""
        return self

    def check(self, recipe: Recipe) -> None:
        """Refuses, before any text is read, recipe settings that the task does not support.

        Raises:
            ValueError: Names the setting, and the supported ones.
        """

    def complete(self, recipe: Recipe, corpora: "Mapping[str, Sequence[Dataset]]") -> Recipe:
        """Returns the recipe completed by values that come from the text itself, such as the labels.

        Args:
            recipe: Values it already gives are kept.
            corpora: The texts of `train`, `dev` and `test`.

        Raises:
            ValueError: A row cannot be used; the message says where it is.
        """
        return recipe

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoding of text as ids for a complete recipe."""

    def vocabulary_columns(self, recipe: Recipe) -> tuple[str, ...]:
        """Returns the columns of text that a vocabulary is learned from: all but labels."""
        return self.form.without_labels().names

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """Builds the recipe's model, with random weights and the settings to be saved with it.

        Its `forward` takes the result of `collate`, `num_items_in_batch` (the items of all batches of the step, which
        divide the summed loss) and `skip_logits`, and returns an output that has a `loss`.
        """

    def training_flops(self, config: Any, *lengths: np.ndarray) -> float:
        """Returns the operations of one training pass over rows of these lengths, as in Table 2."""
        return training_flops(config, *lengths)

    def describe(self, config: Any) -> str:
        """Describes layers, width and dropout."""
        stacks = (getattr(config, f"{stack}_layers", 0) for stack in ("encoder", "decoder"))
        layers = "+".join(str(count) for count in stacks if count)
        return f"{layers} layers of width {config.d_model} with dropout {config.dropout:g}"

    def items(self, *lengths: Lengths) -> Lengths:
        """Returns the number of loss items in each row; `lengths` are (rows,) for each column of ids."""

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads rows to a batch for the model.

        Without rows, returns a batch whose loss is zero: a process with nothing to do in a step runs the same
        operations as the others.
        """

    def examples(self, corpus: "Dataset") -> int:
        """Returns the number of texts that `evaluate` predicts."""
        return len(corpus)

    def sample(self, corpus: "Dataset", texts: int) -> "Dataset":
        """Returns a sample of `texts` texts for `evaluate`, evenly spaced; all texts if predicting them is cheap."""
        return corpus

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object],
        **settings: Any,
    ) -> "Evaluation":
        """Returns a `Score` for each metric on a corpus of the task's form; `settings` control the prediction.

        Args:
            progress: Receives the number of texts done since its last call.
        """

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, batch_tokens: int | None = None
    ) -> Predictor:
        """Returns the model, ready to predict.

        Raises:
            ValueError: The model is for another command; the message names it.
        """
        place = f"`{self.command}`" if self.command else f'pipeline("{self.pipeline}")'
        raise ValueError(f"The model is for {self.name}: give it to {place} instead of `predict`")

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """Returns the model's predictions for some examples."""

    def describe_rows(self, rows: int) -> str:
        """Describes the rows that a model learned from, for its card."""
        return f"{rows:,} {self.form.unit} after removing empty and over-long ones"

    def describe_limit(self, max_length: int) -> str:
        """Describes the text of a model that learned from rows of at most that many tokens, for its card."""
        return f"{self.form.unit} of at most {max_length} tokens"
