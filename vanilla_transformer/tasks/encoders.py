"""Shared parts of the tasks of models with one stack: sizes, costs, and rows that pass through them in batches."""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import pad
from vanilla_transformer.data.preparation import Encoder, Texts
from vanilla_transformer.errors import MetricError, RecipeError
from vanilla_transformer.evaluation.metrics import score
from vanilla_transformer.evaluation.scoring import Evaluation, describe_truncated, in_chunks
from vanilla_transformer.limits import check_whole
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerEncoderConfig
from vanilla_transformer.recipe.defaults import MODEL_FIELDS
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.interface import Prediction, Predictor, Row, Task, refuse_options
from vanilla_transformer.translation.translator import BATCH_TOKENS, CHUNK_LINES, evaluating

if TYPE_CHECKING:
    from datasets import Dataset

# Blocks and options of a recipe, besides sizes, that only an encoder-decoder has.
_FOREIGN = ("architecture", "tokenizer_sides", "decoding")
# Tokens of a row that a model reads if its positions have no limit.
LONGEST_ROW = 1024


class EncoderTask(Task):
    """Shared behaviour of the tasks of models with one stack, such as encoder-only models.

    Attributes:
        foreign: Blocks and options of a recipe that are refused, besides those of an encoder-decoder.
        columns: Names of the columns of ids, one or two; batches are planned by their lengths.
        config_class, model_class, predictor_class: Classes of its models, and of what predicts with one.
        evaluation_settings: Settings that `evaluate` accepts besides the tokens of a batch.
    """

    foreign: tuple[str, ...] = ("documents", "classification")
    columns: tuple[str, ...]
    config_class: type[Any] = VanillaTransformerEncoderConfig
    model_class: type[PreTrainedModel]
    predictor_class: "type[EncoderPredictor]"
    evaluation_settings: tuple[str, ...] = ()

    def row_encoder(self, encode: Callable[[Texts, PreTrainedTokenizerFast], Any], **settings: Any) -> Encoder:
        """Returns an encoder of the task's rows."""
        return Encoder(self.name, self.form, self.columns, encode, **settings)

    def config(self, recipe: Recipe) -> Any:
        """Returns the sizes of the recipe's model: its preset, overridden by the recipe's own fields.

        Raises:
            RecipeError: A setting is not for this task.
        """
        fields = [name for name in MODEL_FIELDS if hasattr(self.config_class, name)]
        refuse_options(recipe, self.name, *_FOREIGN, *({*MODEL_FIELDS} - {*fields}), *self.foreign)
        given = {name: recipe[name] for name in fields if recipe[name] is not None}
        given["architectures"] = [self.model_class.__name__]
        config = self.config_class.from_preset(recipe.model.preset or "base", **given, **self.head(recipe))
        # Only learned positions have a limit.
        config.max_position_embeddings = max(config.max_position_embeddings, recipe.data.max_length)
        return config

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the configuration's fields for the head."""
        return {}

    def build(self, recipe: Recipe) -> PreTrainedModel:
        """Builds the recipe's model with random weights."""
        return self.model_class(self.config(recipe))

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, batch_tokens: int | None = None
    ) -> Predictor:
        """Returns the model, ready to predict."""
        return self.predictor_class(model, tokenizer, batch_tokens)

    @abstractmethod
    def references(self, corpus: "Dataset") -> list[str]:
        """Returns the right prediction of each row, written like its `line` without a score."""

    def check_rows(self, corpus: "Dataset", predictor: Any) -> None:
        """Refuses rows that this model cannot be scored on.

        Raises:
            CorpusError: Says where the row stands, and why.
        """

    def written(self, prediction: Prediction) -> str:
        """Returns a row's line in a file of predictions."""
        return prediction.label

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda count: None,
        batch_tokens: int | None = None,
        **settings: Any,
    ) -> Evaluation:
        """Predicts every row and scores the predictions.

        Raises:
            ValueError: Some settings are for other models.
            CorpusError: A row cannot be scored, such as one with a label unknown to the model.
        """
        if not len(corpus):
            raise MetricError("The corpus to evaluate on is empty.")
        for name in sorted(settings.keys() - {*self.evaluation_settings}):
            raise RecipeError(f"{name} is not for models of {self.name}: leave it out.")
        predictor = self.predictor_class(model, tokenizer, batch_tokens, **settings)
        self.check_rows(corpus, predictor)
        start = time.perf_counter()
        predictions = in_chunks(predictor.predict, self.rows(corpus), predictor.chunk_lines, progress)
        seconds = time.perf_counter() - start
        references = self.references(corpus)
        scores = score(metrics, [one.label for one in predictions], [[one] for one in references], self.metrics)
        truncated = sum(prediction.truncated for prediction in predictions)
        unit = "texts" if self.form.packed else self.form.unit
        count, unit_of_speed = self.size(predictions)
        rate = count / seconds
        return Evaluation(
            {one.name: one for one in scores},
            list(map(self.written, predictions)),
            references,
            {
                unit: len(predictions),
                f"truncated_{unit}": truncated,
                unit_of_speed: count,
                "seconds": seconds,
                f"{unit_of_speed}_per_second": rate,
            },
            [
                f"{count:,} {unit_of_speed} in {seconds:.1f} s: {rate:,.1f} {unit_of_speed}/s",
                *describe_truncated(truncated, unit),
            ],
        )

    def size(self, predictions: Sequence[Prediction]) -> tuple[int, str]:
        """Returns how much was predicted, and its unit."""
        return len(predictions), self.form.unit

    def rows(self, corpus: "Dataset") -> list[Row]:
        """Returns the texts of a corpus, without their labels."""
        return list(zip(*(corpus[name] for name in self.form.without_labels().names), strict=True))

    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[str]:
        """Returns the prediction of each text."""
        predictor = self.predictor(model, tokenizer)
        rows = [predictor.read(text) for text in texts]
        return [prediction.line for prediction in predictor.predict(rows, lambda count: None)]


class EncoderPredictor(Predictor):
    """A model that predicts rows of text, in batches of about equal length.

    Args:
        batch_tokens: Tokens in a batch, padding included; chosen by device if None.

    Attributes:
        nothing: The prediction for an empty row.
    """

    nothing: Prediction

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, batch_tokens: int | None = None
    ) -> None:
        check_whole("batch_tokens", batch_tokens, 1)
        kind = "cpu" if model.device.type == "cpu" else "accelerator"
        self.model, self.tokenizer = model, tokenizer
        self.batch_tokens, self.chunk_lines = batch_tokens or BATCH_TOKENS[kind], CHUNK_LINES[kind]
        learned = getattr(model.config, "positional_encoding", None) == "learned"
        self.longest = min(LONGEST_ROW, model.config.max_position_embeddings) if learned else LONGEST_ROW

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

    def logits(self, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yields the places of rows of ids in batches of about equal length, longest first, and their logits."""
        order = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
        with evaluating(self.model), torch.inference_mode():
            while order:
                count = max(1, self.batch_tokens // max(1, len(rows[order[0]])))
                batch, order = order[:count], order[count:]
                ids, mask = pad([rows[place] for place in batch], self.model.config.pad_token_id)
                device = self.model.device
                yield batch, self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits

    def answers(
        self, rows: Sequence[Sequence[int]], progress: Callable[[int], object]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the place of each row of ids, longest first, and the result from its logits."""
        for batch, logits in self.logits(rows):
            yield from zip(batch, self.activated(logits.float()).cpu().numpy(), strict=True)
            progress(len(batch))

    def activated(self, logits: torch.Tensor) -> torch.Tensor:
        """Turns logits into probabilities of labels of which one is right."""
        return logits.softmax(-1)

    def cut(self, ids: Sequence[int]) -> list[int]:
        """Cuts a row to the length that the model can read, keeping its end token."""
        return [*ids] if len(ids) <= self.longest else [*ids[: self.longest - 1], ids[-1]]
