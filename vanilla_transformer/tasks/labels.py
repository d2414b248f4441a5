"""The labels of a corpus: found in its text, in an order independent of the order of rows."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vanilla_transformer.data.columns import BETWEEN_LABELS
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.suggestions import did_you_mean

if TYPE_CHECKING:
    from vanilla_transformer.data.text_streams import TextStream


def with_labels(
    recipe: Recipe,
    corpora: "Mapping[str, Sequence[TextStream]]",
    column: str,
    of_text: Callable[[str], Iterable[str]],
) -> Recipe:
    """Returns the recipe with the labels of `train`, unless it names them; `dev` and `test` may have no others.

    Args:
        of_text: Returns the labels in a text of the column.

    Raises:
        CorpusError: There are fewer than two, or `dev` or `test` has a label unknown to `train`; the message says
            where.
    """
    labels = recipe.classification.labels
    if labels is None:
        found = {label for stream in corpora["train"] for text in texts_of(stream, column) for label in of_text(text)}
        in_order = (lambda label: (int(label), label)) if all(map(_is_number, found)) else None
        labels = tuple(sorted(found, key=in_order))
    if len(labels) < 2:
        where = " + ".join(stream.name for stream in corpora["train"])
        raise CorpusError(f"{where}: there is nothing to tell apart, because {''.join(labels)!r} is its only label")
    for name in ("dev", "test"):
        for stream in corpora[name]:
            for row, text in enumerate(texts_of(stream, column)):
                for label in of_text(text):
                    if label not in labels:
                        raise CorpusError(
                            f"{stream.where(row)}: the label {label!r} of {name} was never seen in train"
                            f"{_instead_of(label, labels)}"
                        )
    return recipe.with_options(labels=labels)


def labels_in(text: str) -> list[str]:
    """Splits a text that may have several labels into its distinct labels."""
    return list(dict.fromkeys(label.strip() for label in text.split(BETWEEN_LABELS) if label.strip()))


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


def label_maps(recipe: Recipe) -> dict[str, dict]:
    """Returns the configuration's fields for the labels; two placeholders until they are known."""
    labels = recipe.classification.labels
    if labels is None:
        return {}
    return {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}


def texts_of(stream: "TextStream", column: str) -> Iterable[str]:
    """Yields the texts of a column."""
    for table in stream.tables():
        yield from table.column(column).to_pylist()


def _is_number(label: str) -> bool:
    return label.removeprefix("-").isdecimal()
