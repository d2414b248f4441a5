"""What a model is scored on, and by what, as its recipe has it."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vanilla_transformer.data.sources import CorpusSpec, TextForm
from vanilla_transformer.evaluation.metrics import Metric, check_names
from vanilla_transformer.model_directory import RECIPE
from vanilla_transformer.recipe.reading import load_recipe

if TYPE_CHECKING:
    from datasets import Dataset


def count_empty_rows(corpus: "Dataset", form: TextForm) -> dict[str, int]:
    """Counts, as a figure beside the scores, the rows that training drops as empty: here they are scored."""
    names = [column.name for column in form.columns if not (column.optional or form.packed)]
    count = sum(not all(map(str.strip, row)) for row in zip(*(corpus[name] for name in names), strict=True))
    return {f"empty_{form.unit}": count} if count else {}


def choose_metrics(
    model: str | os.PathLike[str], known: Mapping[str, Metric], names: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Returns the metrics of these names, else those of the model's recipe, else those of its task by default."""
    recipe = Path(model, RECIPE)
    if names is None and recipe.is_file():
        names = load_recipe(recipe, lenient=True).evaluation.metrics
    if names is None:
        names = [name for name, metric in known.items() if metric.by_default]
    check_names(names, known)
    return tuple(names)


def with_columns_of_model(corpus: CorpusSpec, model: str, form: TextForm) -> CorpusSpec:
    """Returns a table or dataset that names no columns with those that the model's recipe names; others unchanged."""
    recipe = Path(model, RECIPE)
    if corpus.columns or form.parallel or corpus.is_lines(form) or not recipe.is_file():
        return corpus
    data = load_recipe(recipe, lenient=True).data
    corpora = (one for part in ("train", "dev", "test") for one in data.corpora(part))
    known = next((one.columns for one in corpora if one.columns), {})
    settings = [column.setting for column in form.columns]
    return dataclasses.replace(corpus, columns={name: known[name] for name in settings if name in known})


def count_texts(corpus: "Dataset", form: TextForm) -> int:
    """Returns the number of texts that are predicted in an evaluation: each source of pairs once."""
    return len(set(corpus["source"])) if form.parallel else len(corpus)


def sample_texts(corpus: "Dataset", form: TextForm, count: int) -> "Dataset":
    """Returns some of the sources of pairs, evenly spaced, each with all its targets; other texts cost little: all."""
    if not form.parallel or count_texts(corpus, form) <= count:
        return corpus
    sources = list(dict.fromkeys(corpus["source"]))
    kept = {sources[number * len(sources) // count] for number in range(count)}
    return corpus.select([row for row, source in enumerate(corpus["source"]) if source in kept])
