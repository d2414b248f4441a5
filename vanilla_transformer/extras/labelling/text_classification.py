"""A label for each text, or for each pair of texts, by an encoder-only model."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import Lengths, pad
from vanilla_transformer.data.preparation import Encoder, token_ids
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.token_corpus import Ids, Rows
from vanilla_transformer.extras.labelling.label_task import LabelPredictor, LabelTask, number_of
from vanilla_transformer.extras.labelling.text_forms import (
    BETWEEN_LABELS,
    LABELLED_TEXTS,
    MULTI_LABELLED_TEXTS,
    labels_in,
)
from vanilla_transformer.model.configuration_vanilla_transformer_encoder import VanillaTransformerEncoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForSequenceClassification,
)
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.defaults import SizePreset
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import Row, Texts
from vanilla_transformer.tasks.interface import Batch, Prediction, RowRandom

if TYPE_CHECKING:
    from vanilla_transformer.data.text_streams import TextStream


def one_or_two(rows: Iterable[Row]) -> list[Any]:
    """Returns the text of each row, paired with its second text if there is one."""
    return [(text, pair) if pair else text for text, pair in rows]


_LIKELIER_THAN_NOT = 0.5


class TextClassifier(LabelPredictor):
    """Gives each text its likeliest label, with the probability of each."""

    nothing: Mapping[str, Any] = MappingProxyType({"label": None})

    def read(self, line: str) -> Row:
        """Returns the text of a line; there is no second text."""
        return line, ""

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        """Predicts a label for each text."""
        ids = token_ids(one_or_two(rows), self.tokenizer)
        for place, answer in self.answers([self.cut(row) for row in ids], progress):
            yield place, replace(self.prediction(answer), truncated=len(ids[place]) > self.longest)

    def prediction(self, answer: np.ndarray) -> Prediction:
        """Returns the likeliest label."""
        label = self.labels[int(answer.argmax())]
        scores = self.scores(answer)
        values = {"label": label, "score": scores[label], "scores": scores}
        return Prediction(label, f"{label}\t{answer.max():.4f}", values)

    def scores(self, answer: np.ndarray) -> dict[str, float]:
        """Returns the probability of each label."""
        return {name: round(float(share), 6) for name, share in zip(self.labels, answer, strict=True)}


class MultiLabelClassifier(TextClassifier):
    """Gives each text all labels with a probability above one half, with the probability of each."""

    nothing = MappingProxyType({"labels": []})

    def activated(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the probability of each label independently."""
        return logits.sigmoid()

    def prediction(self, answer: np.ndarray) -> Prediction:
        """Returns several labels, one, or none."""
        scores = self.scores(answer)
        found = [name for name, share in zip(self.labels, answer, strict=True) if share > _LIKELIER_THAN_NOT]
        labels = BETWEEN_LABELS.join(found)
        certain = BETWEEN_LABELS.join(f"{scores[name]:.4f}" for name in found)
        return Prediction(labels, f"{labels}\t{certain}", {"labels": found, "scores": scores})


class TextRegressor(TextClassifier):
    """Gives each text a number."""

    nothing = MappingProxyType({"score": None})

    def activated(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the numbers as they are."""
        return logits

    def prediction(self, answer: np.ndarray) -> Prediction:
        """Returns the number."""
        number = float(answer[0])
        return Prediction(repr(number), f"{number:.6g}", {"score": number})


class TextClassification(LabelTask):
    """Each text is an item of the loss; its label is one of those in `train`."""

    name = "text-classification"
    form = LABELLED_TEXTS
    columns: tuple[str, ...] = ("label", "text")
    auto_class = "AutoModelForSequenceClassification"
    pipeline = "text-classification"
    verb = "classify"
    label_options = ("labels", "problem_type", "classifier_pooling")
    between = BETWEEN_LABELS
    model_class = VanillaTransformerEncoderForSequenceClassification
    predictor_class: type[TextClassifier] = TextClassifier
    known_metrics = "vanilla_transformer.extras.labelling.label_metrics:LABEL_METRICS"
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    item = "texts"
    use = "Classifying texts"
    size_presets: tuple[SizePreset, ...] = (
        SizePreset(20_000, 4_000, "tiny", "tiny", 0.3, 2_048, 40),
        SizePreset(100_000, 8_000, "tiny", "tiny", 0.3, 4_096, 20),
        SizePreset(1_000_000, 16_000, "small", "small", 0.1, 8_192, 10),
        SizePreset(float("inf"), 32_000, "base", "small", 0.1, 25_000, 5),
    )

    def of_recipe(self, recipe: Recipe) -> "TextClassification":
        """Returns the task for one label per text, for several, or for a number."""
        kinds = {"multi_label_classification": MultiLabelClassification, "regression": TextRegression}
        kind = kinds.get(recipe["problem_type"])
        return self if kind is None else kind()

    def of_config(self, config: PreTrainedConfig) -> "TextClassification":
        """Returns the task for the kind of label that a saved model learned."""
        return self.of_recipe(Recipe.of(problem_type=config.problem_type))

    def check(self, recipe: Recipe) -> None:
        """Also refuses label smoothing unless one label is right."""
        super().check(recipe)
        kind = recipe["problem_type"]
        if recipe.model.label_smoothing and kind not in (None, "single_label_classification"):
            raise RecipeError(f"label_smoothing is for one label a text, not for {kind}: leave it out.")

    def labels_in(self, text: str) -> list[str]:
        """Returns the labels that a text of the column names."""
        return [text.strip()] if text.strip() else []

    def text_ids(self, texts: Texts, tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
        """Returns the ids of texts, or of pairs of texts."""
        return token_ids(one_or_two(zip(texts["text"], texts["text_pair"], strict=True)), tokenizer)

    def label_ids(self, text: str, numbers: Mapping[str, int]) -> list[int]:
        """Returns the id of the label."""
        return [number_of(text.strip(), numbers)]

    def config(self, recipe: Recipe) -> VanillaTransformerEncoderConfig:
        """Returns the sizes of the model, its labels, and the pooling of its states."""
        config: VanillaTransformerEncoderConfig = super().config(recipe)
        config.classifier_pooling = recipe["classifier_pooling"] or config.classifier_pooling
        return config

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the labels, and how many of them are right."""
        return {**super().head(recipe), "problem_type": recipe["problem_type"] or "single_label_classification"}

    def items(self, *lengths: Lengths) -> Lengths:
        """Counts each text as one item."""
        return np.ones_like(lengths[0])

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts to `input_ids` and `attention_mask`; `labels` come from `targets`."""
        input_ids, attention_mask = pad(rows["text"], config.pad_token_id)
        labels = self.targets(rows["label"], config) if rows["text"] else torch.zeros(0, dtype=torch.int64)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def targets(self, labels: Sequence[Ids], config: PreTrainedConfig) -> torch.Tensor:
        """Returns the label of each text, (rows,)."""
        return torch.from_numpy(np.concatenate(labels).astype(np.int64))


class MultiLabelClassification(TextClassification):
    """Each text is an item of the loss: the summed cross-entropy of one yes-or-no question per label."""

    form = MULTI_LABELLED_TEXTS
    predictor_class = MultiLabelClassifier
    metrics: tuple[str, ...] = ("micro_f1", "macro_f1", "subset_accuracy")
    known_metrics = "vanilla_transformer.extras.labelling.label_metrics:LABEL_SET_METRICS"

    def labels_in(self, text: str) -> list[str]:
        """Returns the labels, separated by commas."""
        return labels_in(text)

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoder of texts and the ids of their labels."""
        labels = recipe["labels"] or ()
        return self.label_encoder(labels, ("several", labels), len(labels) + 1)

    def label_ids(self, text: str, numbers: Mapping[str, int]) -> list[int]:
        """Returns the ids of the labels from 1, or 0 if there are none."""
        return [1 + number_of(label, numbers) for label in labels_in(text)] or [0]

    def targets(self, labels: Sequence[Ids], config: PreTrainedConfig) -> torch.Tensor:
        """Returns ones at the labels of each text, (rows, labels)."""
        ones = torch.zeros(len(labels), (config.num_labels or 0) + 1)
        for row, numbers in zip(ones, labels, strict=True):
            row[torch.from_numpy(numbers.astype(np.int64))] = 1
        return ones[:, 1:]


def number_in(text: str) -> float:
    """Returns the number that a text gives.

    Raises:
        CorpusError: The text gives no number that a float32 can hold.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise CorpusError(f"{text.strip()!r} is not a number that a model can learn or be scored on")
    return number


class TextRegression(TextClassification):
    """Each text is an item of the loss: the squared error of its number."""

    predictor_class = TextRegressor
    metrics: tuple[str, ...] = ("pearson", "mean_squared_error")
    known_metrics = "vanilla_transformer.extras.labelling.label_metrics:NUMBER_METRICS"
    use = "Giving texts a number"
    loss = "squared error"

    def check(self, recipe: Recipe) -> None:
        """Also refuses labels, because a number is none."""
        super().check(recipe)
        if recipe["labels"] is not None:
            raise RecipeError(f"labels are not for {self.name} with problem_type regression: leave labels out.")

    def complete(self, recipe: Recipe, corpora: "Mapping[str, Sequence[TextStream]]") -> Recipe:
        """Returns the recipe unchanged, after checking that all labels are numbers."""
        for streams in corpora.values():
            for stream in streams:
                for row, text in enumerate(self.label_texts(stream)):
                    if text.strip():
                        try:
                            number_in(text)
                        except CorpusError as error:
                            raise CorpusError(f"{stream.where(row)}: {error}") from error
        return recipe

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoder of texts and their numbers."""
        return self.label_encoder((), ("number",), 1 << 32)

    def label_ids(self, text: str, numbers: Mapping[str, int]) -> list[int]:
        """Returns the bits of the number as a float32."""
        return [int(np.float32(number_in(text)).view(np.uint32))]

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """Returns a head with one number."""
        return {**super().head(recipe), "num_labels": 1}

    def targets(self, labels: Sequence[Ids], config: PreTrainedConfig) -> torch.Tensor:
        """Returns the numbers, (rows,)."""
        return torch.from_numpy(np.concatenate(labels).astype(np.uint32).view(np.float32))
