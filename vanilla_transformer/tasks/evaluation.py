"""Scoring of a model on a corpus, in one call."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vanilla_transformer.data.sources import CorpusSpec, TextForm, Word, locate, one_corpus
from vanilla_transformer.evaluation import Evaluation, check_names
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.tasks.interface import Task
from vanilla_transformer.tasks.registry import task_of_model
from vanilla_transformer.translation.loading import load_model

if TYPE_CHECKING:
    from datasets import Dataset


def evaluate(
    model: str | os.PathLike[str],
    data: CorpusSpec | Word | Sequence[Word],
    *,
    metrics: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    **settings: Any,
) -> Evaluation:
    """Scores a model on a corpus in float32, as the command `evaluate` does.

    `evaluate("my-model", ("test.en", "test.de")).scores` is what `vanilla-transformer evaluate my-model --data test.en
    test.de` prints; `.predictions` has a line for each row.

    Args:
        model: Model directory or Hub id.
        data: A corpus in any form that a recipe accepts, such as two line-aligned files, `cmudict:test` or
            `("reviews.tsv", "label_column=stars")`.
        metrics: Names of metrics; by default those of the model's recipe, or else of its task.
        device: Device to compute on, such as `cpu` or `cuda:1`; by default the best one available.
        settings: Prediction settings, such as `num_beams`.

    Raises:
        OSError, ValueError: There is no such model or corpus, or they do not fit together.
    """
    from vanilla_transformer.data.corpus import read_corpus

    path = os.path.expanduser(model)
    task = task_of_model(path)
    names = choose_metrics(path, task, metrics)
    corpus = read_corpus(with_columns_of_model(one_corpus(data), path, task.form), form=task.form)
    loaded, tokenizer = load_model(path, device=device, translates=False)
    evaluation = task.evaluate(loaded, tokenizer, corpus, names, progress=lambda count: None, **settings)
    evaluation.figures.update(count_empty_rows(corpus, task.form))
    return evaluation


def count_empty_rows(corpus: "Dataset", form: TextForm) -> dict[str, int]:
    """Counts, as a figure beside the scores, the rows that training drops as empty: here they are scored."""
    names = [column.name for column in form.columns if not (column.optional or form.packed)]
    count = sum(not all(map(str.strip, row)) for row in zip(*(corpus[name] for name in names), strict=True))
    return {f"empty_{form.unit}": count} if count else {}


def choose_metrics(model: str | os.PathLike[str], task: Task, names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns the metrics of these names, else those of the model's recipe, else those of its task by default."""
    recipe = Path(model) / "recipe.yaml"
    if names is None and recipe.is_file():
        names = load_recipe(recipe, lenient=True).evaluation.metrics
    if names is None:
        names = [name for name, metric in task.metrics.items() if metric.by_default]
    check_names(names, task.metrics)
    return tuple(names)


def with_columns_of_model(corpus: CorpusSpec, model: str, form: TextForm) -> CorpusSpec:
    """Returns a table or dataset that names no columns with those that the model's recipe names; others unchanged."""
    recipe = Path(model) / "recipe.yaml"
    has_columns = locate(corpus, form).kind in ("table", "dataset")
    if any(corpus.columns) or form.parallel or not has_columns or not recipe.is_file():
        return corpus
    data = load_recipe(recipe, lenient=True).data
    corpora = (one for part in ("train", "dev", "test") for one in data.corpora(part))
    known = next((one for one in corpora if any(one.columns)), corpus)
    return dataclasses.replace(corpus, **{column.setting: getattr(known, column.setting) for column in form.columns})


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
