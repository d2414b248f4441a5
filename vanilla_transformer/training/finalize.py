"""The end of a run: averages the last checkpoints, scores the model, and writes the model directory."""

import shlex
import shutil
import time
from contextlib import suppress
from dataclasses import replace

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cost import training_flops
from vanilla_transformer.evaluation import Score
from vanilla_transformer.evaluation.corpora import count_texts, sample_texts
from vanilla_transformer.graph.onnx_file import renew
from vanilla_transformer.loading.models import quiet_library
from vanilla_transformer.model_directory import CURVES, read_metrics
from vanilla_transformer.progress import progress_bar
from vanilla_transformer.training.checkpoints import (
    Checkpoint,
    Progress,
    checkpoints_to_average,
    list_checkpoints,
    load_average,
    remove_partial_files,
)
from vanilla_transformer.training.choices import Choices
from vanilla_transformer.training.model_card import write_model_card
from vanilla_transformer.training.processes import from_main_process, is_main_process
from vanilla_transformer.training.run_directory import plot_learning_curves
from vanilla_transformer.training.setup import RunContext
from vanilla_transformer.training.summary import Summary, describe_device, describe_weights, peak_memory

# Decoding a text takes as long as training on about ten texts. The scoring of a run should not take much longer than
# its training.
LEARNED_WHILE_WRITING = 10
SCORED_SHARE, MIN_SCORED = 1 / 40, 200
# The minimum even if no time is left.
MIN_SCORED_IN_TIME = 20


def finalize(
    context: RunContext, choices: Choices, model: PreTrainedModel, progress: Progress
) -> dict[str, list[Score]]:
    """Writes the scored model to the output directory and returns the scores. All processes call it.

    After an interruption, it starts again from the last checkpoint.
    """
    recipe, run, logger = choices.recipe, context.directory, context.logger
    averaged = _load_mean_of_checkpoints(context, choices, model, progress)
    if not is_main_process():
        _help_to_score(context, model.eval())
        return {}
    remove_partial_files(run.path)
    with quiet_library(), atomic_directory(run.path, "model") as temporary:
        model.eval().save_pretrained(temporary)
        if getattr(model.config, "positional_encoding", None) == "learned":  # For `truncation=True`.
            context.inputs.tokenizer.model_max_length = int(model.config.max_position_embeddings)
            context.inputs.tokenizer.save_pretrained(temporary)
        renew(temporary)
    scores = _scores(context, choices, model, progress)
    summary = _summarise(context, choices, model, progress, averaged, scores)
    task = context.task
    items = task.loss_unit
    _plot(context, choices, f"nats per {items.removesuffix('s')}")
    examples = recipe.evaluation.examples
    answers = task.answers(model, context.inputs.tokenizer, examples) if examples else []
    write_model_card(run.path, summary, answers)
    shutil.rmtree(run.prepared, ignore_errors=True)
    summary.write(run.summary)
    # From here on the run is finished, whatever happens to its output.
    logger.info(" ".join(summary.sentences(items)))
    if examples:
        logger.info("Examples and the model's output:")
    for example, answer in zip(examples, answers, strict=True):
        with suppress(OSError, ValueError):  # The stream may be closed, or unable to encode a character.
            print(example, answer, sep="\t", flush=True)
    place = shlex.quote(str(run.path))
    use = [f"{task.command} {place} < FILE"] if task.command != "evaluate" else []
    scored = "SOURCES TARGETS" if task.form.parallel else "FILE"
    commands = [*use, f"evaluate {place} --data {scored}", f"demo {place}"]
    logger.info("\n".join(["Next:", *(f"  vanilla-transformer {command}" for command in commands)]))
    return scores


def _load_mean_of_checkpoints(
    context: RunContext, choices: Choices, model: torch.nn.Module, progress: Progress
) -> list[int]:
    """Section 6.1: loads the average of the last checkpoints into the model, and returns their steps.

    If the run started from a trained model, the checkpoint with the lowest dev loss is loaded instead, because the
    starting model may be the best one.
    """
    recipe, directory = choices.recipe, context.directory.checkpoints

    def chosen() -> list[Checkpoint]:
        if recipe.start.from_model is not None and progress.best_dev_loss is not None:
            return [one for one in list_checkpoints(directory) if one.step == progress.best_step]
        number = recipe.run.average_checkpoints
        return checkpoints_to_average(directory, choices.save_steps, progress.step, number)

    checkpoints = from_main_process(chosen)
    load_average(model, [checkpoint.path for checkpoint in checkpoints])
    steps = [checkpoint.step for checkpoint in checkpoints]
    context.logger.info(f"The model is {describe_weights(steps)}.")
    return steps


def _plot(context: RunContext, choices: Choices, unit: str) -> None:
    """Plots the learning curves. A failure costs only the picture, not the run."""
    path, rates = context.directory.path, choices.recipe.optimization
    schedule = f"{rates.learning_rate_scale:.3g} × Eq. 3" if rates.learning_rate is None else "constant after warm-up"
    with context.logger.optional("the learning curves cannot be plotted"):
        plot_learning_curves(read_metrics(path), path / CURVES, unit, schedule.removeprefix("1 × "))


def _scores(
    context: RunContext, choices: Choices, model: PreTrainedModel, progress: Progress
) -> dict[str, list[Score]]:
    """Scores the model on `dev` and `test`. After a short run, it scores only a part of them."""
    inputs, report = context.inputs, context.logger.info
    task, metrics = context.task, choices.metrics
    learned_from = len(inputs.train) * progress.target_tokens / max(1, inputs.train.token_counts[-1])
    texts = {"dev": inputs.dev_text, "test": inputs.test_text} if metrics else {}
    given = {name: text for name, text in texts.items() if text is not None}
    scores: dict[str, list[Score]] = {}
    processes = context.processes
    for name, corpus in given.items():
        seconds = (context.budget.deadline - time.perf_counter()) / (len(given) - len(scores))
        in_time = max(MIN_SCORED_IN_TIME, seconds * learned_from / progress.seconds / LEARNED_WHILE_WRITING)
        number = int(min(max(MIN_SCORED, learned_from * SCORED_SHARE), in_time))
        sample = sample_texts(corpus, task.form, number)
        total, texts_there = count_texts(sample, task.form), count_texts(corpus, task.form)
        processes.gather(sample.with_format(None).to_dict())
        with progress_bar(f"sentences of {name}", total=-(-total // processes.number)) as bar:
            found = task.evaluate(
                model, inputs.tokenizer, sample, metrics, progress=bar.update, processes=processes
            ).scores.values()
        scores[name] = list(found)
        if total < texts_there:
            part = f"{total:,} of {texts_there:,} different texts"
            report(
                f"{name}: scored on {part}, evenly spaced, because the run was short. `evaluate` scores all of them."
            )
            scores[name] = [replace(score, signature=f"{score.signature}|{part}") for score in found]
        for score in scores[name]:
            report(f"{name}: {score}")
    processes.gather(None)
    return scores


def _help_to_score(context: RunContext, model: PreTrainedModel) -> None:
    """Predicts this process's part of each corpus. The main process computes the scores."""
    task, tokenizer, processes = context.task, context.inputs.tokenizer, context.processes
    while columns := processes.gather(None)[0]:
        sample = Dataset.from_dict(columns)
        task.evaluate(model, tokenizer, sample, (), progress=lambda count: None, processes=processes)


def _summarise(
    context: RunContext,
    choices: Choices,
    model: PreTrainedModel,
    progress: Progress,
    averaged: list[int],
    scores: dict[str, list[Score]],
) -> Summary:
    corpus = context.inputs.train
    epochs = progress.target_tokens / context.inputs.items
    dev_losses = [record["dev_loss"] for record in read_metrics(context.directory.path) if "dev_loss" in record]
    return Summary(
        steps=progress.step,
        epochs=epochs,
        averaged_steps=averaged,
        parameters=model.num_parameters(),
        pairs=corpus.report.kept,
        target_tokens=progress.target_tokens,
        flops=epochs * training_flops(model.config, *corpus.lengths.values()),
        seconds=progress.seconds,
        best_dev_loss=progress.best_dev_loss,
        best_dev_step=progress.best_step if progress.best_dev_loss is not None else None,
        last_dev_loss=dev_losses[-1] if dev_losses else None,
        peak_memory_bytes=peak_memory(model.device),
        device=describe_device(model.device, progress.processes),
        processes=progress.processes,
        precision=choices.precision,
        scores=scores,
        languages=list(context.inputs.languages),
    )
