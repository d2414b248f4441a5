"""Shared parts of the tasks of models with one stack."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.sources import Row
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.evaluation.metrics import score
from vanilla_transformer.evaluation.scoring import ALONE, Evaluation, Processes, in_chunks
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerEncoderConfig
from vanilla_transformer.recipe.defaults import MODEL_FIELDS
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.interface import Prediction, Predictor, Task, refuse_options

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
    config_class: type[Any] = VanillaTransformerEncoderConfig
    model_class: type[PreTrainedModel]
    predictor_class: type[Predictor]

    def config(self, recipe: Recipe) -> Any:
        fields = [name for name in MODEL_FIELDS if hasattr(self.config_class, name)]
        refuse_options(recipe, self.name, *_FOREIGN, *({*MODEL_FIELDS} - {*fields}), *self.foreign)
        given = {name: recipe[name] for name in fields if recipe[name] is not None}
        given["architectures"] = [self.model_class.__name__]
        config = self.config_class.from_preset(recipe.model.preset or "base", **given, **self.head(recipe))
        # Only learned positions have a limit.
        config.max_position_embeddings = max(config.max_position_embeddings, recipe.data.max_length)
        return config

    def head(self, recipe: Recipe) -> dict[str, object]:
        """Returns the configuration's fields for the head."""
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
    ) -> Evaluation:
        if not len(corpus):
            raise CorpusError("The corpus to evaluate on is empty.")
        for name in settings:
            raise RecipeError(f"{name} is not for models of {self.name}: leave it out.")
        predictor = self.predictor_class(model, tokenizer, batch_tokens)
        references = self.references(corpus, predictor)
        start = time.perf_counter()
        predictions = in_chunks(predictor.predict, self.rows(corpus), predictor.chunk_lines, progress, processes)
        seconds = time.perf_counter() - start
        scores = score(metrics, [one.label for one in predictions], [[one] for one in references], self.metrics)
        unit = "texts" if self.form.packed else self.form.unit
        count, unit_of_speed = self.size(predictions)
        return Evaluation(
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
