"""Shared parts of the tasks of models of one stack: sizes, costs, and rows that pass through them in batches."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.analysis.cost import training_flops
from vanilla_transformer.data.batching import pad
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.text_lines import CorpusError, RowError
from vanilla_transformer.limits import check_whole
from vanilla_transformer.model.configuration_vanilla_transformer_encoder import VanillaTransformerEncoderConfig
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.defaults import MODEL_FIELDS, SizePreset
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.interface import Prediction, SpecialTokens, Task
from vanilla_transformer.translation.translator import BATCH_TOKENS, CHUNK_LINES

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.evaluation.metrics import Metric, Score
    from vanilla_transformer.evaluation.scoring import Processes

# Blocks and options of a recipe that only an encoder-decoder has.
ONE_STACK_FOREIGN = ("architecture", "recurrent", "tokenizer_sides", "target_direction", "decoding")
# Tokens of a row that a model reads where its positions have no end.
LONGEST_ROW = 1024
Row = tuple[str, ...]


class EncoderTask(Task, ABC):
    """A task of encoder-only models, or of others of one stack: what they have in common.

    Attributes:
        foreign: Blocks and options of a recipe that are refused.
        kind: What its models are, as the refusal says it.
        evaluation_settings: What `evaluate` may be told beside the tokens of a batch.
    """

    name: str
    foreign: tuple[str, ...] = (
        *ONE_STACK_FOREIGN,
        *("decoder_layers", "documents", "problem_type", "classifier_pooling"),
    )
    kind = "an encoder"
    evaluation_settings: tuple[str, ...] = ()
    loss = "nats"
    config_class: type[Any] = VanillaTransformerEncoderConfig
    form: TextForm
    settings: tuple[Any, ...] = ()
    special_tokens = SpecialTokens(begins=True)
    size_presets: tuple[SizePreset, ...]
    least_warmup: int
    metrics: tuple[str, ...]
    model_class: type[PreTrainedModel]

    def check(self, recipe: Recipe) -> None:
        """Refuses what only an encoder-decoder has, and metrics of other tasks."""
        for option in recipe.used(*self.foreign):
            raise RecipeError(f"{option} is not for {self.name}, whose model is {self.kind}: leave it out.")
        if recipe.classification.labels is not None and not 2 <= len(set(recipe.classification.labels)) == len(
            recipe.classification.labels
        ):
            raise RecipeError(
                f"labels must be two or more, each once, not {' '.join(recipe.classification.labels) or 'none'}."
            )
        from vanilla_transformer.evaluation.metrics import check_names

        check_names(recipe.evaluation.metrics or (), self.known_metrics())

    @abstractmethod
    def known_metrics(self) -> "Mapping[str, Metric]":
        """The metrics that there are for it, by name."""

    def vocabulary_columns(self, recipe: Recipe) -> tuple[str, ...]:
        """The texts, and no labels."""
        return tuple(column.name for column in self.form.columns if column.setting != "label_column")

    def config(self, recipe: Recipe) -> Any:
        """The sizes of the model that the recipe describes: its preset, with the fields that it gives itself."""
        fields = [name for name in MODEL_FIELDS if hasattr(self.config_class, name)]
        given = {name: recipe[name] for name in fields if recipe[name] is not None}
        given["architectures"] = [self.model_class.__name__]
        config = self.config_class.from_preset(recipe.model.preset or "base", **given, **self.head(recipe))
        # Only learned positions have an end.
        config.max_position_embeddings = max(config.max_position_embeddings, recipe.data.max_length)
        return config

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """Fields of the configuration for the head."""
        return {}

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """The model that the recipe describes, with random weights."""
        return self.model_class(self.config(recipe))

    def training_flops(self, config: Any, *lengths: np.ndarray) -> float:
        """Operations of one training pass over texts of these lengths, as Table 2 counts them."""
        return training_flops(config, lengths[-1])

    def numbers_kept(self, config: Any) -> int:
        """Sums all layers."""
        return config.num_hidden_layers * (10 * config.d_model + 2 * config.d_ff)

    def describe(self, config: Any) -> str:
        """Layers, width and dropout."""
        return f"{config.num_hidden_layers} layers of width {config.d_model} with dropout {config.dropout:g}"

    @abstractmethod
    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, batch_tokens: int | None = None
    ) -> "EncoderPredictor":
        """A function that predicts rows."""

    def scorer(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        batch_tokens: int | None = None,
        **settings: Any,
    ) -> "EncoderPredictor":
        """A function that makes the predictions that are scored."""
        return self.predictor(model, tokenizer, batch_tokens=batch_tokens)

    @abstractmethod
    def reference(self, row: Mapping[str, str]) -> str:
        """The right prediction of a row, written as its `line` without a score."""

    def check_row(self, row: Mapping[str, str], labels: Mapping[str, int]) -> None:  # noqa: B027, most have none
        """Refuses a row whose prediction by a model with these labels cannot be scored.

        Raises:
            CorpusError: Says why.
        """

    def written(self, prediction: Prediction) -> str:
        """The line that a file of predictions has for a row."""
        return prediction.label

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda count: None,
        processes: "Processes | None" = None,
        batch_tokens: int | None = None,
        **settings: Any,
    ) -> "Predictions":
        """Predicts every row and scores the predictions.

        Raises:
            ValueError: There are settings, which are for other models.
            RowError: A row has a label that the model has not, or no number.
        """
        from vanilla_transformer.evaluation.metrics import MetricError, score
        from vanilla_transformer.evaluation.scoring import in_shares

        if not len(corpus):
            raise MetricError("The corpus to evaluate on is empty.")
        self.check_settings(settings)
        predictor = self.scorer(model, tokenizer, batch_tokens=batch_tokens, **settings)
        labels = {label: number for number, label in enumerate(predictor.labels)}
        for number, row in enumerate(corpus):
            try:
                self.check_row(row, labels)
            except CorpusError as error:
                raise RowError(number, error) from error
        start = time.perf_counter()
        predictions = in_shares(predictor.predict, self._rows(corpus), predictor.chunk_lines, processes, progress)
        seconds = time.perf_counter() - start
        found = [prediction.label for prediction in predictions]
        references = [[self.reference(row)] for row in corpus]
        truncated = sum(prediction.truncated for prediction in predictions)
        scores = score(metrics, found, references, self.known_metrics())
        return Predictions(scores, list(map(self.written, predictions)), seconds, truncated, self.form.unit)

    def evaluate_worker(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        processes: "Processes",
        *,
        batch_tokens: int | None = None,
        **settings: Any,
    ) -> None:
        """Predicts a part of the rows."""
        from vanilla_transformer.evaluation.scoring import in_shares

        predictor = self.scorer(model, tokenizer, batch_tokens=batch_tokens, **settings)
        in_shares(predictor.predict, self._rows(corpus), predictor.chunk_lines, processes)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuses settings of an evaluation that are for other models.

        Raises:
            ValueError: Says for which.
        """
        foreign = [name for name in settings if name not in self.evaluation_settings]
        if foreign:
            whom = "language models" if "stride" in foreign else "models that write text"
            raise ValueError(f"{' and '.join(foreign)} is for {whom}, and this one is for {self.name}.")

    def _rows(self, corpus: "Dataset") -> list[Row]:
        """The texts of a corpus, without their labels."""
        return list(zip(*(corpus[name] for name in self.vocabulary_columns(Recipe.of(task=self.name))), strict=True))

    def show(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """The prediction of each text."""
        predictor = self.predictor(model, tokenizer)
        rows = [predictor.read(text) for text in texts]
        return [prediction.line for prediction in predictor.predict(rows, lambda count: None)]


@dataclass(frozen=True)
class Predictions:
    """Predictions of a corpus, one for each row, and their scores."""

    scores: "list[Score]"
    predictions: list[str]
    seconds: float
    truncated: int
    unit: str

    def as_json(self) -> dict[str, Any]:
        """The figures beside the scores."""
        return {
            self.unit: len(self.predictions),
            f"truncated_{self.unit}": self.truncated,
            "seconds": self.seconds,
            f"{self.unit}_per_second": len(self.predictions) / self.seconds,
        }

    def in_words(self) -> list[str]:
        """The same in sentences."""
        count = len(self.predictions)
        speed = f"{count:,} {self.unit} in {self.seconds:.1f} s: {count / self.seconds:,.1f} {self.unit}/s"
        cut = f"{self.truncated:,} {self.unit} were too long for the model and were truncated"
        return [speed, *([cut] if self.truncated else [])]


class EncoderPredictor(ABC):
    """A model that is asked about rows of text, in batches of about equal length.

    Args:
        batch_tokens: Tokens in a batch, padding included; chosen by device where not given.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, batch_tokens: int | None = None
    ) -> None:
        check_whole("batch_tokens", batch_tokens, 1)
        kind = "cpu" if model.device.type == "cpu" else "accelerator"
        self.model, self.tokenizer = model, tokenizer
        self.batch_tokens, self.chunk_lines = batch_tokens or BATCH_TOKENS[kind], CHUNK_LINES[kind]
        config: Any = model.config
        self.labels: list[str] = [config.id2label[number] for number in range(config.num_labels)]
        learned = getattr(model.config, "positional_encoding", None) == "learned"
        self.longest = min(LONGEST_ROW, model.config.max_position_embeddings) if learned else LONGEST_ROW

    @abstractmethod
    def read(self, line: str) -> Row:
        """A row of text from a line of it."""

    @abstractmethod
    def predict(self, rows: Sequence[Row], progress: Callable[[int], object]) -> list[Prediction]:
        """A prediction for each row, in order; `progress` is told the rows of each batch."""

    def answers(
        self, rows: Sequence[Sequence[int]], progress: Callable[[int], object]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """The place of each row of ids, the longest first, and what its logits say."""
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        with evaluating(self.model), torch.inference_mode():
            while order:
                count = max(1, self.batch_tokens // max(1, len(rows[order[0]])))
                batch, order = order[:count], order[count:]
                ids, mask = pad([rows[place] for place in batch], self.model.config.pad_token_id)
                device = self.model.device
                logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
                yield from zip(batch, self.activated(logits.float()).cpu().numpy(), strict=True)
                progress(len(batch))

    def activated(self, logits: torch.Tensor) -> torch.Tensor:
        """Turns logits into probabilities of labels one of which is right."""
        return logits.softmax(-1)

    def cut(self, ids: Sequence[int]) -> list[int]:
        """No more of a row than the model can read, still with what ends it."""
        return [*ids] if len(ids) <= self.longest else [*ids[: self.longest - 1], ids[-1]]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout; afterwards the model is as it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
