"""Shared parts of the tasks of models with one stack."""

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.encoding import RowEncoder, Texts
from vanilla_transformer.data.sources import Row, row_place
from vanilla_transformer.errors import CorpusError, SettingError, did_you_mean
from vanilla_transformer.evaluation.metrics import score
from vanilla_transformer.evaluation.scoring import ALONE, EvaluationResult, Processes, in_chunks
from vanilla_transformer.model.configuration_vanilla_transformer import (
    VanillaTransformerBaseConfig,
    VanillaTransformerEncoderConfig,
)
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.interface import Prediction, Predictor, Task, refuse_options
from vanilla_transformer.tasks.sizes import MODEL_FIELDS

if TYPE_CHECKING:
    from datasets import Dataset

# Blocks and options of a recipe, besides sizes, that only an encoder-decoder has.
_FOREIGN = ("architecture", "recurrent", "tokenizer_sides", "decoding")


class EncoderTask(Task):
    """Shared behaviour of the tasks of models with one stack, such as encoder-only models.

    Attributes:
        foreign: Blocks and options of a recipe that are refused, besides those of an encoder-decoder.
        columns: Names of the columns of ids, one or two; batches are planned by their lengths.
        config_class, model_class, predictor_class: Classes of its models, and of what predicts with one.
    """

    foreign: tuple[str, ...] = ("documents", "classification")
    columns: tuple[str, ...]
    config_class: type[VanillaTransformerBaseConfig] = VanillaTransformerEncoderConfig
    model_class: type[PreTrainedModel]
    predictor_class: type[Predictor]

    def config(self, recipe: Recipe) -> VanillaTransformerBaseConfig:
        fields = [name for name in MODEL_FIELDS if hasattr(self.config_class, name)]
        refuse_options(recipe, self.name, *_FOREIGN, *({*MODEL_FIELDS} - {*fields}), *self.foreign)
        given = {name: recipe[name] for name in fields if recipe[name] is not None}
        given["architectures"] = [self.model_class.__name__]
        config = self.config_class.from_preset(recipe.model.preset or "base", **given, **self.head(recipe))
        # Only learned positions have a limit.
        config.max_position_embeddings = max(config.max_position_embeddings, recipe.data.max_length)
        return config

    def head(self, recipe: Recipe) -> dict[str, object]:
        """Returns the configuration's fields besides those of every model, such as those for its head."""
        return {}

    def build(self, recipe: Recipe) -> PreTrainedModel:
        return self.model_class(self.config(recipe))

    def predictor(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_tokens: int | None = None
    ) -> Predictor:
        return self.predictor_class(model, tokenizer, batch_tokens)

    @abstractmethod
    def references(self, corpus: "Dataset", predictor: Predictor) -> list[str]:
        """Returns the right prediction of each row, written like its `line` without a score."""

    def evaluate(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        corpus: "Dataset",
        metrics: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda count: None,
        batch_tokens: int | None = None,
        processes: Processes = ALONE,
        **settings: Any,
    ) -> EvaluationResult:
        if not len(corpus):
            raise CorpusError("The corpus to evaluate on is empty.")
        for name in settings:
            raise SettingError(f"{name} is not for models of {self.name}: leave it out.")
        predictor = self.predictor_class(model, tokenizer, batch_tokens)
        references = self.references(corpus, predictor)
        start = time.perf_counter()
        predictions = in_chunks(predictor.predict, self.rows(corpus), predictor.chunk_lines, progress, processes)
        seconds = time.perf_counter() - start
        scores = score(metrics, [one.label for one in predictions], [[one] for one in references], self.metrics)
        unit = "texts" if self.form.packed else self.form.unit
        count, unit_of_speed = self.size(predictions)
        return EvaluationResult(
            {one.name: one for one in scores},
            [str(one.label) for one in predictions],
            references,
            {
                unit: len(predictions),
                f"truncated_{unit}": sum(prediction.truncated for prediction in predictions),
                unit_of_speed: count,
                "seconds": seconds,
                f"{unit_of_speed}_per_second": count / seconds,
            },
        )

    def size(self, predictions: Sequence[Prediction]) -> tuple[int, str]:
        """Returns how much was predicted, and its unit."""
        return len(predictions), self.form.unit

    def rows(self, corpus: "Dataset") -> list[Row]:
        """Returns the texts of a corpus, without their labels."""
        return list(zip(*(corpus[name] for name in self.form.without_labels().names), strict=True))

    def answers(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
        predictor = self.predictor(model, tokenizer)
        rows = [predictor.read(text) for text in texts]
        return [prediction.line for prediction in predictor.predict(rows, lambda count: None)]


class LabelTask(EncoderTask):
    """Shared behaviour of the tasks that learn labels.

    The first of its columns of ids has the labels, the second the text.
    """

    foreign: tuple[str, ...] = ("documents",)

    @abstractmethod
    def labels_in(self, text: str) -> list[str]:
        """Returns the labels that a text of the label column names; an empty one is none."""

    @abstractmethod
    def text_ids(self, texts: Texts, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Returns the column of text: what `collate` needs of each row besides its labels."""

    def with_labels(self, recipe: Recipe, corpora: "Mapping[str, Sequence[Dataset]]") -> Recipe:
        """Returns the recipe with the labels of `train`, unless it names them; `dev` and `test` may have no others.

        Their order does not depend on the order of rows.
        """
        labels, (column, _) = recipe["labels"], self.columns
        if labels is None:
            texts = (text for corpus in corpora["train"] for text in corpus.unique(column))
            found = {label for text in texts for label in self.labels_in(text)} - {""}
            are_numbers = all(label.removeprefix("-").isdecimal() for label in found)
            labels = tuple(sorted(found, key=(lambda label: (int(label), label)) if are_numbers else None))
        for corpus in chain.from_iterable(corpora.values()):
            self._refuse_others(corpus, {*labels, ""})
        return recipe.with_options(labels=labels)

    def _refuse_others(self, corpus: "Dataset", labels: Collection[str]) -> None:
        """Refuses a corpus with other labels; those of an empty text do not matter."""
        *_, column = self.form.columns
        for row, (text, of_text) in enumerate(zip(corpus[self.form.names[0]], corpus[column.name], strict=True)):
            for label in self.labels_in(of_text) if text.strip() else ():
                if label not in labels:
                    hint = did_you_mean(label, labels)
                    raise CorpusError(f"{row_place(corpus, row)}: there is no label {label!r}{hint}")

    def encoder(self, recipe: Recipe) -> RowEncoder:
        labels = recipe["labels"] or ()
        of_labels, of_text = self.columns
        numbers = {label: number for number, label in enumerate(labels)}

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
            found = [[numbers[label] for label in self.labels_in(text)] for text in texts[of_labels]]
            return {of_text: self.text_ids(texts, tokenizer), of_labels: found}

        return RowEncoder(self.name, self.form, self.columns, encode, settings=(labels,))

    def head(self, recipe: Recipe) -> dict[str, object]:
        """Returns the labels; none until they are known, which leaves two placeholders."""
        labels = recipe["labels"]
        if labels is None:
            return {}
        if not 2 <= len(set(labels)) == len(labels):
            raise SettingError(f"labels must be two or more different ones, not {' '.join(labels) or 'none'}.")
        names = dict(enumerate(labels))
        return {"id2label": names, "label2id": {label: number for number, label in names.items()}}

    def references(self, corpus: "Dataset", predictor: Predictor) -> list[str]:
        """Returns the labels of each row; refuses a row with a label unknown to the model."""
        self._refuse_others(corpus, predictor.labels)
        return [" ".join(self.labels_in(text)) for text in corpus[self.columns[0]]]
