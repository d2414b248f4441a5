"""Texts with labels: the columns of their tables, and several labels in one text."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vanilla_transformer.data.columns import TEXTS, Column, TextForm
from vanilla_transformer.data.text_lines import CorpusError

BETWEEN_LABELS = ","


def labels_in(text: str) -> list[str]:
    """Splits a text that may have several labels into its distinct labels."""
    return list(dict.fromkeys(label.strip() for label in text.split(BETWEEN_LABELS) if label.strip()))


def joined_labels(labels: Sequence[Any], where: str) -> str:
    """Joins a list of labels into one text, separated by commas.

    Raises:
        CorpusError: One of them cannot be a label's name.
    """
    texts = [json.dumps(label) if isinstance(label, int | float) else label for label in labels]
    for text in texts:
        if not isinstance(text, str) or not text.strip() or BETWEEN_LABELS in text:
            raise CorpusError(f"{where}: {text!r} in a list of labels is empty, contains a comma or is not text")
    return BETWEEN_LABELS.join(texts)


_TEXTS = (
    *TEXTS.columns,
    Column("text_pair", "text_pair_column", ("text_pair", "sentence2", "hypothesis", "question2"), optional=True),
)
_LABEL = Column("label", "label_column", ("label", "labels"), numbers=True)
LABELLED_TEXTS = TextForm((*_TEXTS, _LABEL), "texts", "without a text or a label")
MULTI_LABELLED_TEXTS = replace(LABELLED_TEXTS, columns=(*_TEXTS, replace(_LABEL, of_list=joined_labels)))
