"""The interface of a task: everything that training needs to know of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pipelines import PIPELINE_REGISTRY

from vanilla_transformer.data.batching import Indices, Lengths, TokenIds, pad
from vanilla_transformer.data.encoding import RowEncoder, Rows
from vanilla_transformer.data.sources import Row, TextForm
from vanilla_transformer.errors import ModelError, SettingError, check_number
from vanilla_transformer.evaluation import ALONE, EvaluationResult, Metric, Processes
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.sizes import SIZES_FOR_LABELS, SizePreset
from vanilla_transformer.translation.live_models import evaluating
from vanilla_transformer.translation.translator import BATCH_TOKENS, CHUNK_LINES, batches_of_rows

if TYPE_CHECKING:
    from datasets import Dataset

Batch = dict[str, torch.Tensor]
# Tokens of a row that a model reads if its positions have no limit.
MAX_ROW_LENGTH = 1024


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
class Prediction:
    """A model's prediction for a row of text.

    Attributes:
        label: What a metric compares with a reference: a text, or the cost of one.
        line: The prediction with its score in one line, for people.
        values: The prediction for machines.
        truncated: Whether the row was cut because it was too long for the model.
    """

    label: Any
    line: str
    values: Mapping[str, object]
    truncated: bool = False


class Predictor(ABC):
    """A model that predicts rows of text, in batches of about equal length; it gives an empty row `nothing`.

    Args:
        batch_tokens: Tokens in a batch, padding included; chosen by device if None.
    """

    nothing: Prediction

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_tokens: int | None = None
    ) -> None:
        check_number("batch_tokens", batch_tokens, 1)
        kind = "cpu" if model.device.type == "cpu" else "accelerator"
        self.model, self.tokenizer = model, tokenizer
        self.batch_tokens, self.chunk_lines = batch_tokens or BATCH_TOKENS[kind], CHUNK_LINES[kind]
        learned = getattr(model.config, "positional_encoding", None) == "learned"
        self.longest = min(MAX_ROW_LENGTH, model.config.max_position_embeddings) if learned else MAX_ROW_LENGTH

    @property
    def labels(self) -> list[str]:
        """The labels of a classifier, in the order of their ids."""
        return [label for _, label in sorted((self.model.config.id2label or {}).items())]

    @abstractmethod
    def read(self, line: str) -> Row:
        """Makes a row of text from a line, without the column to be predicted."""

    def predict(self, rows: Sequence[Row], progress: Callable[[int], object]) -> list[Prediction]:
        """Predicts each row, in order; an empty one gets `nothing`."""
        predictions = [self.nothing] * len(rows)
        full = [place for place, row in enumerate(rows) if row[0].strip()]
        progress(len(rows) - len(full))
        found = self.predictions([rows[place] for place in full], progress) if full else ()
        for place, prediction in found:
            predictions[full[place]] = prediction
        return predictions

    @abstractmethod
    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterable[tuple[int, Prediction]]:
        """Yields the place of each row, none of which is empty, and its prediction, in any order."""

    def logits(self, rows: Sequence[TokenIds]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yields the places of rows of ids in batches of about equal length, longest first, and their logits."""
        with evaluating(self.model), torch.inference_mode():
            for batch in batches_of_rows(rows, self.batch_tokens):
                ids, mask = pad([rows[place] for place in batch], self.model.config.pad_token_id)
                device = self.model.device
                yield batch, self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits

    def probabilities(
        self, rows: Sequence[Sequence[int]], progress: Callable[[int], object]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the place of each row of ids, longest first, and the probabilities of the labels."""
        for batch, logits in self.logits(rows):
            yield from zip(batch, logits.float().softmax(-1).cpu().numpy(), strict=True)
            progress(len(batch))

    def cut(self, ids: Sequence[int]) -> list[int]:
        """Cuts a row to the length that the model can read, keeping its end token."""
        return [*ids] if len(ids) <= self.longest else [*ids[: self.longest - 1], ids[-1]]


class Task(ABC):
    """A task that a run trains for. No other code asks which task it is.

    Two rules keep a resumed run bit-exact, and a run of several processes the same as a run of one: the number of loss
    items in a row follows from its lengths alone, and `collate` draws random numbers from `rng` alone.

    Attributes:
        command: The command that its models are used by.
        sample: An input for the model card, where the recipe has no examples.
        special_tokens: Whether `<s>` begins a text, `</s>` ends it, and the vocabulary has a `<mask>`.
        sizes: The sizes of models and runs by the number of rows.
    """

    command = "predict"
    sample = "..."
    special_tokens: Mapping[str, bool] = {"begins": True, "ends": True, "mask_token": False}
    sizes: Sequence[SizePreset] = SIZES_FOR_LABELS

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in a recipe."""

    @property
    @abstractmethod
    def form(self) -> TextForm:
        """The columns of text that it reads, and the word for its rows."""

    @property
    @abstractmethod
    def auto_class(self) -> str:
        """The Auto class of `transformers` that loads its models."""

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """What its models can be scored by."""

    @property
    def loss_unit(self) -> str:
        """The name of the items of its loss, in the plural."""
        return self.form.unit

    @property
    def pipeline(self) -> str | None:
        """The pipeline of `transformers` for its models, None if there is none."""
        pipelines: Any = PIPELINE_REGISTRY.supported_tasks
        kinds = {name: [kind.__name__ for kind in one["pt"]] for name, one in pipelines.items()}
        return next((name for name, known in kinds.items() if self.auto_class in known), None)

    def with_labels(self, recipe: Recipe, corpora: "Mapping[str, Sequence[Dataset]]") -> Recipe:
        """Returns the recipe completed by the labels of its texts, if the task has any."""
        return recipe

    @abstractmethod
    def config(self, recipe: Recipe) -> PreTrainedConfig:
        """Returns the sizes of the recipe's model: its preset, overridden by the recipe's own fields.

        Raises:
            SettingError: A setting is not for this task, or the sizes fit no model.
        """

    @abstractmethod
    def build(self, recipe: Recipe) -> PreTrainedModel:
        """Builds the recipe's model, with random weights and the settings to be saved with it.

        Its `forward` takes the result of `collate`, `num_items_in_batch` (the items of all batches of the step, which
        divide the summed loss) and `skip_logits`, and returns an output that has a `loss`.
        """

    @abstractmethod
    def encoder(self, recipe: Recipe) -> RowEncoder:
        """Returns the encoding of text as ids for a complete recipe."""

    @abstractmethod
    def items(self, *lengths: Lengths) -> Lengths:
        """Returns the number of loss items in each row; `lengths` are (rows,) for each column of ids."""

    @abstractmethod
    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads rows to a batch for the model.

        Without rows, returns a batch whose loss is zero, with a gradient for each weight: a process with nothing to
        do in a step runs the same operations as the others.
        """

    @abstractmethod
    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object],
        processes: Processes = ALONE,
        **settings: Any,
    ) -> EvaluationResult:
        """Scores a model on a corpus of the task's form; `settings` control the prediction.

        `progress` receives the number of texts done since its last call. Of several `processes`, which all have model
        and corpus, each predicts its part, or all texts where the task does not divide them.
        """

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_tokens: int | None = None
    ) -> Predictor:
        """Returns the model, ready to predict; raises ModelError if `predict` is not for it."""
        raise ModelError(
            f"`predict` is not for {self.name}: give the model to `{self.command}`, or to its pipeline in transformers"
        )

    @abstractmethod
    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
        """Returns what the model makes of some texts."""


def refuse_options(recipe: Recipe, task: str, *names: str) -> None:
    """Refuses options of these names, or in blocks of these names, that are not for a task."""
    for option in recipe.used(*names):
        raise SettingError(f"{option} is not for {task}: leave it out.")
