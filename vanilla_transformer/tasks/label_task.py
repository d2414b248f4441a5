"""Shared parts of the tasks whose labels are found in the text that a model learns from."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.data.encoding import Encoder, Texts
from vanilla_transformer.data.sources import row_place
from vanilla_transformer.errors import CorpusError, RecipeError, did_you_mean
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks.encoders import EncoderTask
from vanilla_transformer.tasks.interface import Predictor

if TYPE_CHECKING:
    from datasets import Dataset


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

    def encoder(self, recipe: Recipe) -> Encoder:
        labels = recipe["labels"] or ()
        of_labels, of_text = self.columns
        numbers = {label: number for number, label in enumerate(labels)}

        def encode(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
            found = [[numbers[label] for label in self.labels_in(text)] for text in texts[of_labels]]
            return {of_text: self.text_ids(texts, tokenizer), of_labels: found}

        def size(tokenizer: PreTrainedTokenizerBase) -> int:
            return max(2 * len(tokenizer), len(labels))  # The ids of words to be tagged are doubled.

        return Encoder(self.name, self.form, self.columns, encode, settings=(labels,), ids=size)

    def head(self, recipe: Recipe) -> dict[str, object]:
        """Returns the labels; none until they are known, which leaves two placeholders."""
        labels = recipe["labels"]
        if labels is None:
            return {}
        if not 2 <= len(set(labels)) == len(labels):
            raise RecipeError(f"labels must be two or more different ones, not {' '.join(labels) or 'none'}.")
        names = dict(enumerate(labels))
        return {"id2label": names, "label2id": {label: number for number, label in names.items()}}

    def references(self, corpus: "Dataset", predictor: Predictor) -> list[str]:
        """Returns the labels of each row; refuses a row with a label unknown to the model."""
        self._refuse_others(corpus, predictor.labels)
        return [" ".join(self.labels_in(text)) for text in corpus[self.columns[0]]]
