"""A label for each text, or for each two texts, by an encoder-only model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from vanilla_transformer.data.batching import LABEL_PADDING, Lengths, pad
from vanilla_transformer.data.columns import LABELLED_TEXTS, TextForm
from vanilla_transformer.data.preparation import Encoder, Rows, token_ids
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForSequenceClassification,
)
from vanilla_transformer.recipe.defaults import LEAST_WARMUP, SizePreset
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import EncoderPredictor, EncoderTask, Row
from vanilla_transformer.tasks.interface import Batch, Prediction, RowRandom
from vanilla_transformer.tasks.labels import label_maps, number_of, with_labels

if TYPE_CHECKING:
    from vanilla_transformer.data.streams import TextStream
    from vanilla_transformer.evaluation.metrics import Metric


@dataclass(frozen=True)
class _LabelEncoder:
    """Texts, or two texts together, and the number of the label of each."""

    name: str
    labels: tuple[str, ...]
    form: TextForm = LABELLED_TEXTS
    columns: tuple[str, ...] = ("label", "text")

    @property
    def settings(self) -> tuple[Any, ...]:
        return (self.labels,)

    def ids(self, tokenizer: PreTrainedTokenizerFast) -> int:
        return max(len(tokenizer), len(self.labels))

    def encode(
        self, texts: Mapping[str, Sequence[str]], tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, list[list[int]]]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        return {
            "text": token_ids(one_or_two(texts["text"], texts["text_pair"]), tokenizer),
            "label": [[number_of(label.strip(), numbers)] for label in texts["label"]],
        }


def one_or_two(texts: Sequence[str], pairs: Sequence[str]) -> list[Any]:
    """Each text by itself, or with the second that belongs to it."""
    return [(text, pair) if pair else text for text, pair in zip(texts, pairs, strict=True)]


class TextClassifier(EncoderPredictor):
    """Gives each text its likeliest label, with the probability of each."""

    def read(self, line: str) -> Row:
        """The text of a line; there is no second."""
        return line, ""

    def predict(self, rows: Sequence[Row], progress: Callable[[int], object]) -> list[Prediction]:
        """A label for each text that is not empty."""
        predictions = [Prediction("", "", {"label": None})] * len(rows)
        full = [place for place, (text, *_) in enumerate(rows) if text.strip()]
        texts = one_or_two([rows[place][0] for place in full], [rows[place][1] for place in full])
        ids = token_ids(texts, self.tokenizer)
        progress(len(rows) - len(full))
        for place, shares in self.probabilities([self.cut(row) for row in ids], progress):
            best = int(shares.argmax())
            label, certain = self.labels[best], float(shares[best])
            scores = {name: round(float(share), 6) for name, share in zip(self.labels, shares, strict=True)}
            predictions[full[place]] = Prediction(
                label,
                f"{label}\t{certain:.4f}",
                {"label": label, "score": scores[label], "scores": scores},
                truncated=len(ids[place]) > self.longest,
            )
        return predictions


class TextClassification(EncoderTask):
    """Each text is an item of the loss, whose label is one of those that `train` has."""

    name = "text-classification"
    form = LABELLED_TEXTS
    columns: tuple[str, ...] = ("label", "text")
    auto_class = "AutoModelForSequenceClassification"
    pipeline = "text-classification"
    model_class = VanillaTransformerEncoderForSequenceClassification
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    item = "texts"
    use = "Classifying texts"
    least_warmup = LEAST_WARMUP
    size_presets: tuple[SizePreset, ...] = (
        SizePreset(20_000, 4_000, "tiny", "tiny", 0.3, 2_048, 40),
        SizePreset(100_000, 8_000, "tiny", "tiny", 0.3, 4_096, 20),
        SizePreset(1_000_000, 16_000, "small", "small", 0.1, 8_192, 10),
        SizePreset(float("inf"), 32_000, "base", "small", 0.1, 25_000, 5),
    )

    def complete(self, recipe: Recipe, corpora: "Mapping[str, Sequence[TextStream]]") -> Recipe:
        """The recipe with the labels of `train`."""
        return with_labels(recipe, corpora, "label", lambda text: [text.strip()] if text.strip() else [])

    def encoder(self, recipe: Recipe) -> Encoder:
        """With the numbers of the labels."""
        return _LabelEncoder(self.name, recipe.labels or ())

    def known_metrics(self) -> "Mapping[str, Metric]":
        """Those of labels."""
        from vanilla_transformer.evaluation.labels import LABEL_METRICS

        return LABEL_METRICS

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """The labels, one of which is right."""
        return {**label_maps(recipe), "problem_type": "single_label_classification"}

    def items(self, *lengths: Lengths) -> Lengths:
        """Each text is one."""
        return lengths[0]

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts to `input_ids` and `attention_mask`; `labels` are (rows,)."""
        if not rows["text"]:
            nothing = torch.full((1, 1), config.pad_token_id)
            labels = torch.full((1,), LABEL_PADDING)
            return {"input_ids": nothing, "attention_mask": torch.ones_like(nothing), "labels": labels}
        input_ids, attention_mask = pad(rows["text"], config.pad_token_id)
        labels = torch.from_numpy(np.concatenate(rows["label"]).astype(np.int64))
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}

    def reference(self, row: Mapping[str, str]) -> str:
        """The label."""
        return row["label"].strip()

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, batch_tokens: int | None = None
    ) -> "TextClassifier":
        """Gives each text its likeliest label."""
        return TextClassifier(model, tokenizer, batch_tokens)
