"""Chooses the metrics and prepares the corpora of an evaluation, with defaults from the recipe of the model."""

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
    """Counts the empty examples, which training drops but an evaluation scores."""
    names = [column.name for column in form.columns if not (column.optional or form.packed)]
    count = sum(not all(map(str.strip, row)) for row in zip(*(corpus[name] for name in names), strict=True))
    return {f"empty_{form.unit}": count} if count else {}


def choose_metrics(
    model: str | os.PathLike[str], known: Mapping[str, Metric], names: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Returns the given metrics, or else those in the recipe of the model, or else the defaults of its task."""
    recipe = Path(model, RECIPE)
    if names is None and recipe.is_file():
        names = load_recipe(recipe, lenient=True).evaluation.metrics
    if names is None:
        names = [name for name, metric in known.items() if metric.by_default]
    check_names(names, known)
    return tuple(names)


def with_columns_of_model(corpus: CorpusSpec, model: str, form: TextForm) -> CorpusSpec:
    """Adds the columns of the model's recipe to a table or dataset for which no columns are given."""
    recipe = Path(model, RECIPE)
    if corpus.columns or corpus.is_built_in or corpus.is_lines(form) or not recipe.is_file():
        return corpus
    data = load_recipe(recipe, lenient=True).data
    corpora = (one for part in ("train", "dev", "test") for one in data.corpora(part))
    known = next((one.columns for one in corpora if one.columns), {})
    settings = [column.setting for column in form.columns]
    return dataclasses.replace(corpus, columns={name: known[name] for name in settings if name in known})


def count_texts(corpus: "Dataset", form: TextForm) -> int:
    """Returns the number of texts that an evaluation predicts. A source with several targets counts once."""
    return len(set(corpus["source"])) if form.parallel else len(corpus)


def sample_texts(corpus: "Dataset", form: TextForm, count: int) -> "Dataset":
    """Returns evenly spaced sources of a parallel corpus with all their targets, or all examples of another corpus.

    Other corpora are not sampled, because their evaluation is fast.
    """
    if not form.parallel or count_texts(corpus, form) <= count:
        return corpus
    sources = list(dict.fromkeys(corpus["source"]))
    kept = {sources[number * len(sources) // count] for number in range(count)}
    return corpus.select([row for row, source in enumerate(corpus["source"]) if source in kept])
