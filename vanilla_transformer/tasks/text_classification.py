"""A label for each text, or for each pair of texts, by an encoder-only model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.batching import Lengths, pad
from vanilla_transformer.data.encoding import Rows, TextOrPair, Texts, token_ids
from vanilla_transformer.data.sources import TEXTS, Column, Row, TextForm
from vanilla_transformer.evaluation.metrics import LABEL_METRICS
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerEncoderConfig
from vanilla_transformer.model.modeling_vanilla_transformer_encoder import (
    VanillaTransformerEncoderForSequenceClassification,
)
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import LabelTask
from vanilla_transformer.tasks.interface import Batch, Prediction, Predictor, RowRandom

LABELLED_TEXTS = TextForm(
    (
        *TEXTS.columns,
        Column("text_pair", "text_pair_column", ("text_pair", "sentence2", "hypothesis", "question2"), optional=True),
        Column("label", "label_column", ("label", "labels"), numbers=True),
    ),
    "texts",
)


def one_or_two(rows: Iterable[Row]) -> list[TextOrPair]:
    """Returns the text of each row, paired with its second text if there is one."""
    return [(text, pair) if pair else text for text, pair in rows]


class TextClassifier(Predictor):
    """Gives each text its likeliest label, with the probability of each."""

    nothing = Prediction("", "", {"label": None})

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_tokens: int | None = None
    ) -> None:
        if model.config.problem_type not in (None, "single_label_classification"):
            raise ValueError(
                f"This model was trained for {model.config.problem_type}, not to give a text one label: use it with "
                'pipeline("text-classification") of transformers.'
            )
        super().__init__(model, tokenizer, batch_tokens)

    def read(self, line: str) -> Row:
        return line, ""

    def predictions(self, rows: Sequence[Row], progress: Callable[[int], object]) -> Iterator[tuple[int, Prediction]]:
        ids = token_ids(one_or_two(rows), self.tokenizer)
        for place, answer in self.probabilities([self.cut(row) for row in ids], progress):
            label = self.labels[int(answer.argmax())]
            scores = {name: round(float(share), 6) for name, share in zip(self.labels, answer, strict=True)}
            values = {"label": label, "score": scores[label], "scores": scores}
            line, truncated = f"{label}\t{answer.max():.4f}", len(ids[place]) > self.longest
            yield place, Prediction(label, line, values, truncated=truncated)


class TextClassification(LabelTask):
    """Each text is an item of the loss; its label is one of those in `train`."""

    name = "text-classification"
    form = LABELLED_TEXTS
    columns: tuple[str, ...] = ("label", "text")
    auto_class = "AutoModelForSequenceClassification"
    model_class: type[PreTrainedModel] = VanillaTransformerEncoderForSequenceClassification
    predictor_class: type[Predictor] = TextClassifier
    metrics = LABEL_METRICS

    def labels_in(self, text: str) -> list[str]:
        return [text.strip()]

    def text_ids(self, texts: Texts, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        return token_ids(one_or_two(zip(texts["text"], texts["text_pair"], strict=True)), tokenizer)

    def head(self, recipe: Recipe) -> dict[str, object]:
        pooling = recipe["classifier_pooling"] or VanillaTransformerEncoderConfig.classifier_pooling
        return {**super().head(recipe), "problem_type": "single_label_classification", "classifier_pooling": pooling}

    def items(self, *lengths: Lengths) -> Lengths:
        return np.ones_like(lengths[0])

    def collate(self, rows: Rows, rng: RowRandom, config: PreTrainedConfig) -> Batch:
        """Pads texts to `input_ids` and `attention_mask`; `labels` are the label of each, (rows,)."""
        input_ids, attention_mask = pad(rows["text"], config.pad_token_id)
        labels = np.fromiter(chain.from_iterable(rows["label"]), np.int64)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": torch.from_numpy(labels)}
