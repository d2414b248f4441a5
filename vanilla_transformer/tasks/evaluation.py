"""Scoring of a model on a corpus, in one call."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from vanilla_transformer.data.sources import CorpusSpec, Word, one_corpus
from vanilla_transformer.errors import SettingError
from vanilla_transformer.evaluation import EvaluationResult
from vanilla_transformer.evaluation.corpora import choose_metrics, count_empty_rows, with_columns_of_model
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.machine import torch_as_usual
from vanilla_transformer.tasks.registry import task_of_model


@torch_as_usual()
def evaluate(
    model: str | os.PathLike[str],
    data: CorpusSpec | Word | Sequence[Word],
    *,
    metrics: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    **settings: Any,
) -> EvaluationResult:
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

    if not isinstance(model, str | os.PathLike):
        raise SettingError(f"evaluate scores a saved model by its directory or Hub id, not a {type(model).__name__}.")
    path = os.path.expanduser(model)
    task = task_of_model(path)
    names = choose_metrics(path, task.metrics, metrics)
    corpus = read_corpus(with_columns_of_model(one_corpus(data), path, task.form), form=task.form)
    loaded, tokenizer = load_model(path, device=device, translates=False)
    evaluation = task.evaluate(loaded, tokenizer, corpus, names, progress=lambda count: None, **settings)
    evaluation.figures.update(count_empty_rows(corpus, task.form))
    return evaluation
