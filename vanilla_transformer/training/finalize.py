"""The end of a run: the mean of the last checkpoints, its scores, and the files of a model directory."""

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cores import own_threads
from vanilla_transformer.cost import training_flops
from vanilla_transformer.errors import RunError
from vanilla_transformer.evaluation.metrics import Score
from vanilla_transformer.progress import progress_bar
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import count_texts, sample_texts, task_for
from vanilla_transformer.training.averaging import load_average
from vanilla_transformer.training.checkpoints import (
    Progress,
    checkpoints_to_average,
    list_checkpoints,
    remove_partial_files,
)
from vanilla_transformer.training.curves import plot_learning_curves
from vanilla_transformer.training.devices import describe_device, device_peak, has_tf32, peak_memory, training_kernels
from vanilla_transformer.training.inputs import Inputs
from vanilla_transformer.training.model_card import usage_for, write_model_card
from vanilla_transformer.training.run_directory import RunDirectory
from vanilla_transformer.training.run_logger import RunLogger
from vanilla_transformer.training.summary import CURVES, Summary, describe_weights, items_of_loss
from vanilla_transformer.translation.loading import without_progress_bars

if TYPE_CHECKING:
    from datasets import Dataset

# Writing a text takes as long as learning from some ten: a run is not scored for much longer than it has learned.
LEARNED_WHILE_WRITING = 10
SCORED_SHARE, MIN_SCORED = 1 / 40, 200
# However little time is left.
MIN_SCORED_IN_TIME = 20


def finalize(
    recipe: Recipe,
    run: RunDirectory,
    inputs: Inputs,
    model: PreTrainedModel,
    progress: Progress,
    logger: RunLogger,
    deadline: float,
) -> None:
    """Turns the output directory into a scored model; if interrupted, it is repeated from the last checkpoint.

    Args:
        deadline: When the run has to be over, on the clock of `time.perf_counter`.
    """
    remove_partial_files(run.path)
    averaged = _load_mean_of_checkpoints(recipe, run, model, progress, logger)
    with without_progress_bars(), atomic_directory(run.path, "model") as temporary:
        model.eval().save_pretrained(temporary)
    texts = {"dev": inputs.dev_text, "test": inputs.test_text} if recipe.evaluation.metrics else {}
    given = {name: text for name, text in texts.items() if text is not None}
    scores = {}
    for left, (name, text) in zip(range(len(given), 0, -1), given.items(), strict=True):
        seconds = (deadline - time.perf_counter()) / left
        scores[name] = _score(name, text, recipe, inputs, model, progress, logger, seconds)
    summary = _summarise(recipe, inputs, model, progress, logger.read_metrics(), averaged, scores)
    task = task_for(recipe)
    items = items_of_loss(task)
    plot_learning_curves(logger.read_metrics(), run.path / CURVES, f"nats per {items.removesuffix('s')}")
    answers = task.answers(model, inputs.tokenizer, recipe.evaluation.examples)
    write_model_card(run.path, summary, answers)
    logger.info(summary.describe(items))
    if answers:
        logger.info("Examples, each with what the model makes of it:")
    for example, answer in zip(recipe.evaluation.examples, answers, strict=True):
        print(example, answer, sep="\t", flush=True)
    shutil.rmtree(run.prepared, ignore_errors=True)
    run.finish.unlink(missing_ok=True)
    summary.write(run.summary)
    logger.info("Next:\n" + "\n".join(f"  vanilla-transformer {command}" for command in _next_commands(recipe)))


def _next_commands(recipe: Recipe) -> list[str]:
    """Returns commands that use a finished model, score it on other text and show it."""
    task, model = task_for(recipe), shlex.quote(str(recipe.run.output))
    usage = usage_for(task)
    use = f"{usage.command} {model} < FILE" if usage else ""
    if usage is None or not usage.command:
        use = f"train --task text-classification --from {model} --train FILE --output OTHER"
    text = "SOURCES TARGETS" if task.form.parallel else "FILE"
    return [use, f"evaluate {model} --data {text}", f"demo {model}"]


def _load_mean_of_checkpoints(
    recipe: Recipe, run: RunDirectory, model: torch.nn.Module, progress: Progress, logger: RunLogger
) -> list[int]:
    """Section 6.1: loads the mean of the last checkpoints into the model, and returns their steps.

    Where a run started from a trained model, which may have been better, that of the lowest loss on dev is loaded.
    """
    if recipe.start.from_model is not None and progress.best_dev_loss is not None:
        checkpoints = [one for one in list_checkpoints(run.checkpoints, logger.info) if one.step == progress.best_step]
    else:
        checkpoints = checkpoints_to_average(
            run.checkpoints, recipe.run.save_steps, progress.step, recipe.run.average_checkpoints, logger.info
        )
    load_average(model, [checkpoint.path for checkpoint in checkpoints])
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise RunError(
            f"The checkpoints in {run.checkpoints} contain weights that are NaN or infinite, which cannot "
            "make a model: start again in another output directory with a smaller --learning-rate-scale."
        )
    steps = [checkpoint.step for checkpoint in checkpoints]
    logger.info(f"The model is {describe_weights(steps)}.")
    return steps


def _score(
    name: str,
    corpus: "Dataset",
    recipe: Recipe,
    inputs: Inputs,
    model: PreTrainedModel,
    progress: Progress,
    logger: RunLogger,
    seconds: float,
) -> list[Score]:
    task = task_for(recipe)
    learned_from = len(inputs.train) * progress.target_tokens / max(1, inputs.train.token_counts[-1])
    in_time = max(MIN_SCORED_IN_TIME, seconds * learned_from / progress.seconds / LEARNED_WHILE_WRITING)
    texts = count_texts(corpus, task.form)
    corpus = sample_texts(corpus, task.form, int(min(max(MIN_SCORED, learned_from * SCORED_SHARE), in_time)))
    total = count_texts(corpus, task.form)
    with _all_cores(model.device), progress_bar(f"sentences of {name}", total=total) as bar:
        evaluation = task.evaluate(model, inputs.tokenizer, corpus, recipe.evaluation.metrics, progress=bar.update)
    scores = list(evaluation.scores.values())
    if total < texts:
        part = f"{total:,} of {texts:,} texts"
        logger.info(
            f"{name}: scored on {part}, evenly spaced, because the run was short; `evaluate` scores all of them."
        )
        scores = [replace(score, signature=f"{score.signature}|{part}") for score in scores]
    for score in scores:
        logger.info(f"{name}: {score}")
    return scores


@contextmanager
def _all_cores(device: torch.device) -> Iterator[None]:
    """Uses as many threads as all processes of the run had, since the others have ended."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(max(threads, own_threads() * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _summarise(
    recipe: Recipe,
    inputs: Inputs,
    model: PreTrainedModel,
    progress: Progress,
    records: list[dict[str, Any]],
    averaged: list[int],
    scores: dict[str, list[Score]],
) -> Summary:
    corpus, task = inputs.train, task_for(recipe)
    lengths = tuple(corpus.lengths.values())
    epochs = progress.target_tokens / int(task.items(*lengths).sum(dtype=np.int64))
    flops = epochs * training_flops(model.config, *lengths)
    memory = peak_memory(model.device)  # Measuring the device's peak takes some memory too.
    with training_kernels(recipe.optimization.tf32 and has_tf32(model.device)):
        peak = device_peak(model.device, recipe.optimization.precision)
    peak_of_all = peak.flops_per_second * progress.processes
    last = {name: record[name] for record in records for name in ("loss", "dev_loss") if name in record}
    return Summary(
        steps=progress.step,
        epochs=epochs,
        averaged_steps=averaged,
        parameters=model.num_parameters(),
        pairs=corpus.report.kept,
        target_tokens=progress.target_tokens,
        flops=flops,
        seconds=progress.seconds,
        last_loss=last.get("loss"),
        last_dev_loss=last.get("dev_loss"),
        best_dev_loss=progress.best_dev_loss,
        best_dev_step=progress.best_step if progress.best_dev_loss is not None else None,
        target_tokens_per_second=progress.target_tokens / progress.seconds,
        peak_memory_bytes=memory,
        device=describe_device(model.device, progress.processes),
        processes=progress.processes,
        peak_flops_per_second=peak_of_all,
        peak_source=peak.source,
        share_of_peak=flops / progress.seconds / peak_of_all,
        precision=recipe.optimization.precision,
        scores=scores,
        languages=list(inputs.languages),
    )
