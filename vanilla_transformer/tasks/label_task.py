"""Shared parts of the tasks whose labels are found in the text that a model learns from."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerFast

from vanilla_transformer.data.corpus import row_place
from vanilla_transformer.data.preparation import Encoder
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.suggestions import did_you_mean
from vanilla_transformer.tasks.encoders import EncoderPredictor, EncoderTask, Texts

if TYPE_CHECKING:
    from datasets import Dataset


class LabelPredictor(EncoderPredictor):
    """A model that predicts labels."""

    @cached_property
    def labels(self) -> list[str]:
        """Returns the labels in the order of their ids."""
        config: Any = self.model.config
        return [config.id2label[number] for number in range(config.num_labels)]


class LabelTask(EncoderTask):
    """Shared behaviour of the tasks that learn labels.

    The first of its columns of ids has the labels, the second the text.
    """

    foreign: tuple[str, ...] = ("documents",)

    @abstractmethod
    def labels_in(self, text: str) -> list[str]:
        """Returns the labels that a text of the label column names."""

    @abstractmethod
    def text_ids(self, texts: Texts, tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
        """Returns the column of text: what `collate` needs of each row besides its labels."""

    def text_size(self, tokenizer: PreTrainedTokenizerFast) -> int:
        """Returns how many different numbers `text_ids` may contain."""
        return len(tokenizer)

    def with_labels(self, recipe: Recipe, corpora: "Mapping[str, Sequence[Dataset]]") -> Recipe:
        """Returns the recipe with the labels of `train`, unless it names them; `dev` and `test` may have no others.

        Their order does not depend on the order of rows.

        Raises:
            CorpusError: There are fewer than two, or `dev` or `test` has a label unknown to `train`; the message says
                where.
        """
        labels, (column, _) = recipe["labels"], self.columns
        if labels is None:
            texts = (text for corpus in corpora["train"] for text in corpus.unique(column))
            found = {label for text in texts for label in self.labels_in(text)}
            in_order = (lambda label: (int(label), label)) if all(map(_is_number, found)) else None
            labels = tuple(sorted(found, key=in_order))
        if len(labels) < 2:
            where = " + ".join(corpus.info.description for corpus in corpora["train"])
            only = "".join(labels)
            raise CorpusError(f"{where}: there is nothing to tell apart, because {only!r} is its only label")
        for name in ("dev", "test"):
            for corpus in corpora[name]:
                for row, text in enumerate(corpus[column]):
                    for label in self.labels_in(text):
                        if label not in labels:
                            raise CorpusError(
                                f"{row_place(corpus, row)}: the label {label!r} of {name} was never seen in train"
                                f"{_instead_of(label, labels)}"
                            )
        return recipe.with_options(labels=labels)

    def encoder(self, recipe: Recipe) -> Encoder:
        """Returns the encoder of texts, and of their labels as ids."""
        labels = recipe["labels"] or ()
        of_labels, of_text = self.columns
        numbers = {label: number for number, label in enumerate(labels)}

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerFast) -> dict[str, list[list[int]]]:
            found = [self.label_ids(text, numbers) for text in texts[of_labels]]
            return {of_text: self.text_ids(texts, tokenizer), of_labels: found}

        return self.row_encoder(
            encode, settings=(labels,), ids=lambda tokenizer: max(self.text_size(tokenizer), len(labels))
        )

    def label_ids(self, text: str, numbers: Mapping[str, int]) -> list[int]:
        """Returns the ids of the labels that a text of the label column names, given the number of each.

        Raises:
            CorpusError: It names a label that is unknown.
        """
        return [number_of(label, numbers) for label in self.labels_in(text)]

    def head(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the labels; none until they are known, which leaves two placeholders.

        Raises:
            RecipeError: There are too few, or two the same.
        """
        labels = recipe["labels"]
        if labels is None:
            return {}
        if not 2 <= len(set(labels)) == len(labels):
            raise RecipeError(f"labels must be two or more different ones, not {' '.join(labels) or 'none'}.")
        names = dict(enumerate(labels))
        return {"id2label": names, "label2id": {label: number for number, label in names.items()}}

    def references(self, corpus: "Dataset") -> list[str]:
        """Returns the labels of each row."""
        return [" ".join(self.labels_in(text)) for text in corpus[self.columns[0]]]

    def check_rows(self, corpus: "Dataset", predictor: Any) -> None:
        """Refuses a row with a label unknown to the model."""
        numbers = {label: number for number, label in enumerate(predictor.labels)}
        *_, column = self.form.columns
        for row, (text, label) in enumerate(zip(corpus[self.form.names[0]], corpus[column.name], strict=True)):
            try:
                # Nothing is predicted for an empty text.
                if text.strip():
                    self.label_ids(label, numbers)
            except CorpusError as error:
                raise CorpusError(f"{row_place(corpus, row)}: {error}") from error


def number_of(label: str, numbers: Mapping[str, int]) -> int:
    """Returns the id of a label.

    Raises:
        CorpusError: The label is unknown.
    """
    if label not in numbers:
        raise CorpusError(f"the label {label!r} is not one of the model's{_instead_of(label, numbers)}")
    return numbers[label]


def _instead_of(label: str, labels: Collection[str]) -> str:
    """Names the nearest label, and all labels."""
    there = f"There are {', '.join([*labels][:20])}{' ...' if len(labels) > 20 else ''}"
    return f"{did_you_mean(label, labels) or '.'} {there}"


def _is_number(label: str) -> bool:
    return label.removeprefix("-").isdecimal()
