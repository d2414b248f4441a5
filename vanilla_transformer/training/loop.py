"""The training loop (section 5.2): batch, loss, backward, step, log, evaluate, save."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial

import torch
from accelerate.utils import set_seed
from tqdm import tqdm

from vanilla_transformer.data.batching import share
from vanilla_transformer.data.preparation import PreparedCorpus
from vanilla_transformer.errors import DivergenceError, RunError
from vanilla_transformer.loading.models import move
from vanilla_transformer.machine import keep_freed_memory
from vanilla_transformer.progress import is_terminal
from vanilla_transformer.tasks import Batch, RowRandom
from vanilla_transformer.training.checkpoints import (
    Checkpoint,
    Progress,
    delete_checkpoints_after,
    has_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    save_plain_weights,
)
from vanilla_transformer.training.choices import Choices, device_facts, duration, tokens_in_one_batch
from vanilla_transformer.training.model import build_model, compile_layers, keep_start
from vanilla_transformer.training.optimizer import has_tf32, make_optimizer, make_schedule, training_kernels
from vanilla_transformer.training.processes import StopRequest, from_main_process
from vanilla_transformer.training.setup import RunContext
from vanilla_transformer.training.steps import LocalStep, local_steps, make_plan, one_ahead, pinned

# On an accelerator, reading a number waits for all earlier work; this many steps share one wait.
STEPS_PER_READING = 10
# Each step whose gradients overflow float16 is left out and halves the factor on the loss, from 65,536 on.
MIN_SCALE = 1.0
# Measuring the time of a step takes this long.
SECONDS_OF_MEASURING = 6


class TrainingLoop:
    """A run's model, optimizer and position in the data, and the steps that advance them.

    Attributes:
        progress: The position of the run.
        plain_model: The model itself. `model` is the same model, wrapped to exchange gradients between processes.
        max_steps: The number of steps; infinite if only the time is limited.
    """

    def __init__(self, context: RunContext, choices: Choices) -> None:
        """Builds the model and its optimizer. `begin` follows before the first step."""
        self.context, self.choices, self.task = context, choices, context.task
        self.accelerator, self.logger = context.accelerator, context.logger
        self.checkpoints = context.directory.checkpoints
        optimization, device = choices.recipe.optimization, self.accelerator.device
        train, dev = context.inputs.train, context.inputs.dev
        tokens = train.tokens, "" if dev is None else dev.tokens
        self.progress = Progress(*tokens, processes=self.accelerator.num_processes)
        self.max_steps: float = math.inf
        self.tf32 = optimization.tf32 and has_tf32(device)

        keep_freed_memory()
        set_seed(optimization.seed)
        model, origin = build_model(choices.recipe, self.task, self.checkpoints)
        if origin:
            self.logger.info(origin)
            if self.accelerator.is_main_process:
                keep_start(model, self.checkpoints)
        model = move(model, device)
        self.collate = partial(self.task.collate, config=model.config)
        if device.type == "cpu":
            # On CPUs, the backward pass of torch's fused attention halves the speed of training.
            model.set_attn_implementation("eager")
        self.uncompiled: Callable[[], AbstractContextManager[object]] = nullcontext
        if optimization.compile:
            compile_layers(model)
            # Decoding and the loss on dev have other shapes and modes, which would be compiled too.
            self.uncompiled = partial(torch.compiler.set_stance, "force_eager")
        if choices.precision == "float16":
            # accelerate multiplies losses by its factor, and saves it, as in its own mixed precision.
            self.accelerator.scaler = torch.amp.GradScaler(device.type)
        optimizer = make_optimizer((one for one in model.parameters() if one.requires_grad), choices.recipe, device)
        self.plain_model = model
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        save_plain_weights(self.accelerator, model)
        self.learning_rate = 0.0
        self.unread_loss = torch.zeros((), device=device)
        self.figures: dict[str, float] = {}
        self._clock = 0.0
        self._begun_at, self._begun_after = 0.0, 0

    def run(self, stop: StopRequest) -> None:
        """Trains to the last step, or until a signal requests the end. In both cases the last step is saved."""
        self.model.train()
        if self.tf32 and self.choices.precision == "float32":
            self.logger.info("Matrix multiplications in float32 use TF32. --no-tf32 turns this off.")
        if self.progress.step and from_main_process(self.context.budget.is_over):
            self.max_steps = self.progress.step
        # A file or a pipe gets a line for each log line instead.
        hidden = not (self.accelerator.is_main_process and is_terminal(sys.stderr))
        total, done = self.max_steps, self.progress.step
        bar = tqdm(total=total, initial=done, unit=" steps", dynamic_ncols=True, smoothing=0.1, disable=hidden)
        self._clock = self._begun_at = time.perf_counter()
        self._begun_after = self.progress.step
        if self._keeps_best and self.progress.best_dev_loss is None:
            self._evaluate()
            self._save()
        with training_kernels(self.tf32), bar:
            for step in self._remaining_steps():
                self._update(step)
                self._count(step)
                intervals = self._reading_steps, self._log_steps, self.choices.eval_steps, self.choices.save_steps
                reading_is_due = self._is_due(*intervals)
                stopping = reading_is_due and self._read_losses(stop)
                if self._is_due(self._log_steps):
                    self._log()
                if self._is_due(self.choices.eval_steps):
                    self._evaluate()
                is_best = self._keeps_best and self.progress.best_step == self.progress.step
                if stopping or is_best or self._is_due(self.choices.save_steps):
                    self._save()
                bar.set_postfix_str(_in_words(self.figures), refresh=False)
                bar.update()
                if stopping:
                    break

    @property
    def is_over(self) -> bool:
        """Returns True after the last step, or after `patience` evaluations without improvement."""
        impatient = (
            self.choices.recipe.evaluation.patience is not None
            and self.progress.evaluations_without_gain >= self.choices.recipe.evaluation.patience
        )
        return self.progress.step >= self.max_steps or impatient

    @property
    def _reading_steps(self) -> int:
        """The steps between readings of the loss."""
        return 1 if self.accelerator.device.type == "cpu" else STEPS_PER_READING

    @property
    def _log_steps(self) -> int:
        """The steps between log lines."""
        return self.choices.recipe.run.log_steps

    @property
    def _pins(self) -> bool:
        """Whether batches are put in memory that the accelerator can copy from while the CPU continues."""
        return self.accelerator.device.type == "cuda"

    @cached_property
    def _samples(self) -> list[str]:
        """Sources of `dev`, whose translations are logged."""
        text = self.context.inputs.dev_text if self.task.form.parallel else None
        return [] if text is None else _of_middling_length(text["source"])

    @property
    def _keeps_best(self) -> bool:
        """Whether the result is the checkpoint with the lowest dev loss, which may be the starting model."""
        return self.choices.recipe.start.from_model is not None and self.context.inputs.dev is not None

    def seconds_per_step(self) -> float:
        """Measures the gradients of the first steps, without an update; nothing else is kept of them."""
        begun, steps, done, passed = replace(self.progress), self._remaining_steps(), 0, 0.0
        self.model.train()
        with training_kernels(self.tf32):
            self._add_gradients(next(steps))  # It also allocates memory.
            start = time.perf_counter()
            while passed < SECONDS_OF_MEASURING:
                self._add_gradients(next(steps))
                self.unread_loss.tolist()
                done, passed = done + 1, from_main_process(lambda: time.perf_counter() - start)
        self.optimizer.zero_grad()
        self.unread_loss.zero_()
        self.progress = begun
        return passed / done

    def begin(self, choices: Choices) -> None:
        """Starts the schedule of the learning rate, or returns to the run's checkpoint."""
        self.choices = choices
        recipe, checkpoint = choices.recipe, self.context.checkpoint
        self.max_steps = recipe.optimization.max_steps or math.inf
        schedule = make_schedule(
            self.optimizer.optimizer,
            self.plain_model.config.d_model,
            choices.warmup_steps,
            choices.learning_rate_scale,
            recipe.optimization.learning_rate,
        )
        self.schedule = self.accelerator.prepare(schedule)
        set_seed(recipe.optimization.seed, device_specific=True)
        if checkpoint is not None:
            self._go_back_to(checkpoint)
        if self.accelerator.is_main_process:
            delete_checkpoints_after(self.checkpoints, self.progress.step)
        self.logger.truncate_after(self.progress.step)

    def _go_back_to(self, checkpoint: Checkpoint) -> None:
        begun = self.progress
        self.progress = replace(checkpoint.progress)
        for name, known, now in (("train", self.progress.data, begun.data), ("dev", self.progress.dev, begun.dev)):
            if known != now:
                raise RunError(
                    f"The text of {name} has changed since the run in {self.checkpoints.parent} began: restore it, "
                    "or name another output directory."
                )
        load_checkpoint(self.accelerator, checkpoint)
        self.logger.info(f"Resuming from the checkpoint at step {checkpoint.step:,}.")
        if self.progress.processes != begun.processes:
            self.logger.info(
                f"The number of processes was {self.progress.processes} and is now {begun.processes}, so dropout "
                "draws different numbers."
            )
            set_seed(self.choices.recipe.optimization.seed + self.progress.step, device_specific=True)
            self.progress.processes = begun.processes

    def _remaining_steps(self) -> Iterator[LocalStep]:
        """Yields the steps of epoch after epoch, from the run's current position."""
        progress, accelerator = self.progress, self.accelerator
        device = device_facts(accelerator.device, accelerator.num_processes)
        steps = local_steps(
            self.context.inputs.train,
            self.task,
            self.choices,
            self.collate,
            progress,
            rank=accelerator.process_index,
            processes=accelerator.num_processes,
            pin=self._pins,
            joined_tokens=tokens_in_one_batch(self.plain_model.config, device),
        )
        # On a processor the thread would take a core from the step.
        steps = steps if accelerator.device.type == "cpu" else one_ahead(steps)
        while not self.is_over:
            step = next(steps)
            if step.epoch != progress.epoch:
                progress.epoch, progress.step_in_epoch = step.epoch, 0
            yield step

    def _is_due(self, *intervals: int) -> bool:
        return self.is_over or any(self.progress.step % interval == 0 for interval in intervals)

    def _update(self, step: LocalStep) -> None:
        """Section 5.3: updates the weights once, by the mean loss over the items of the whole step."""
        self._add_gradients(step)
        if self.choices.recipe.optimization.max_grad_norm:
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.unscale_(self.optimizer.optimizer)
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.choices.recipe.optimization.max_grad_norm)
        self.learning_rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def _add_gradients(self, step: LocalStep) -> None:
        processes = self.accelerator.num_processes
        for number, batch in enumerate(step.batches, start=1):
            # Processes exchange their gradients once per step, after its last batch.
            with nullcontext() if number == len(step.batches) else self.accelerator.no_sync(self.model):
                loss = self._loss(self.model, batch, step.items)
                # The exchange takes the mean over processes, but the step needs their sum.
                self.accelerator.backward(loss * processes)
            self.unread_loss += loss.detach() * step.items

    def _loss(self, model: torch.nn.Module, batch: Batch, items: int) -> torch.Tensor:
        """Returns the summed loss of a batch over `items`; without rows, zero with a zero gradient."""
        device, precision = self.accelerator.device, self.choices.precision
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        # Not accelerate's own mixed precision: it copies the logits, the largest tensor of all, to float32.
        with torch.autocast(device.type, getattr(torch, precision), enabled=precision != "float32"):
            return model(**inputs, num_items_in_batch=items, skip_logits=True).loss

    def _count(self, step: LocalStep) -> None:
        self.progress.step += 1
        self.progress.step_in_epoch += 1
        self.progress.target_tokens += step.items
        self.progress.window_tokens += step.items

    def _read_losses(self, stop: StopRequest) -> bool:
        """Collects the losses since the last reading from all processes; True if one has received a signal to stop."""
        flags = (torch.full_like(self.unread_loss, bool(one)) for one in (stop.signal, self.context.budget.is_over()))
        sums = self.accelerator.reduce(torch.stack([self.unread_loss, *flags]), "sum").tolist()
        loss, signals, last_steps = sums
        if not math.isfinite(loss):
            raise self._divergence("The loss is")
        scaler = self.accelerator.scaler
        if scaler is not None and scaler.get_scale() < MIN_SCALE:
            raise self._divergence("In float16, however small the loss is made, gradients are")
        self.unread_loss.zero_()
        progress = self.progress
        progress.window_loss += loss
        progress.window_seconds += self._pass_time()
        self.figures = {
            "loss": progress.window_loss / progress.window_tokens,
            "learning_rate": self.learning_rate,
            "tokens_per_second": round(progress.window_tokens / progress.window_seconds),
        }
        if last_steps:
            self.max_steps = progress.step
        return signals > 0

    def _divergence(self, what: str) -> DivergenceError:
        earlier = (
            f": the checkpoints in {self.checkpoints} are from before" if has_checkpoints(self.checkpoints) else ""
        )
        return DivergenceError(
            f"{what} NaN or infinite at step {self.progress.step:,}, with the learning rate "
            f"{self.learning_rate:.2e}{earlier}. Start again in another output directory with a smaller "
            "--learning-rate-scale, a longer --warmup-steps, --max-grad-norm 1 or --precision float32."
        )

    def _log(self) -> None:
        """Logs the figures of all steps since the last line, and resets the counts."""
        self._record(self.figures, f"{_in_words(self.figures)}{self._time_left()}")
        self.progress.window_loss, self.progress.window_tokens, self.progress.window_seconds = 0.0, 0, 0.0

    def _time_left(self) -> str:
        """Estimates the time of the remaining steps from this process's steps so far, including all overhead."""
        now, left = time.perf_counter(), self.max_steps - self.progress.step
        seconds = left * (now - self._begun_at) / (self.progress.step - self._begun_after)
        most = "at most " if self.choices.recipe.evaluation.patience is not None else ""
        return f" · {most}{duration(min(seconds, self.context.budget.last_step_by - now))} left" if left else ""

    def _evaluate(self) -> None:
        """Measures the loss on `dev`, without label smoothing or dropout."""
        dev = self.context.inputs.dev
        if dev is None:
            return
        progress = self.progress
        with self.uncompiled():
            loss = self._dev_loss(dev)
            # After 1, 2, 4, 8, ... evaluations.
            if self.accelerator.is_main_process and (progress.step // self.choices.eval_steps).bit_count() == 1:
                self._show_samples()
        if not math.isfinite(loss):
            raise self._divergence("The loss on dev is")
        if progress.best_dev_loss is None or loss < progress.best_dev_loss:
            progress.best_dev_loss, progress.best_step, progress.evaluations_without_gain = loss, progress.step, 0
        else:
            progress.evaluations_without_gain += 1
        figures = {"dev_loss": loss}
        words = f"dev: loss {loss:.4f}"
        if "tokens" in self.task.loss_unit:
            figures["dev_perplexity"] = math.exp(min(loss, 700.0))
            words += f" · perplexity {figures['dev_perplexity']:.2f}"
        self._record(figures, words)

    def _show_samples(self) -> None:
        """Logs translations of the samples, if there are any, so that one sees the model learn."""
        samples, tokenizer = self._samples, self.context.inputs.tokenizer
        answers = self.task.answers(self.plain_model, tokenizer, samples) if samples else []
        for sample, answer in zip(samples, answers, strict=True):
            shown = " → ".join(f"{one[:99]}…" if len(one) > 100 else one for one in (sample, answer))
            self.logger.info(f"step {self.progress.step:,} · {shown}")

    def _check_weights(self) -> None:
        """Refuses to save a checkpoint of weights that nothing can be learned from any more."""
        wrong = torch.stack([~weight.isfinite().all() for weight in self.plain_model.parameters()]).any().float()
        if self.accelerator.reduce(wrong, "sum").item():
            raise self._divergence("There are weights that are")

    @torch.no_grad()
    def _dev_loss(self, dev: PreparedCorpus) -> float:
        """Returns the mean loss per item without label smoothing, such as nats per target token."""
        total, items = torch.zeros_like(self.unread_loss), 0
        self.plain_model.eval()
        for step in make_plan(dev, self.task, self.choices).epoch(0):
            items += step.items
            for rows in share(step, self.accelerator.process_index, self.accelerator.num_processes):
                batch = self.collate(dev.rows(rows), RowRandom(self.choices.recipe.optimization.seed, 0, rows))
                batch = pinned(batch) if self._pins else batch
                total += self._loss(self.plain_model, batch, items=1)
        self.plain_model.train()
        return self.accelerator.reduce(total, "sum").item() / items

    def _record(self, figures: dict[str, float], words: str) -> None:
        """Writes figures of this step to metrics.jsonl, the log and the trackers."""
        self._pass_time()
        progress = self.progress
        epoch = progress.target_tokens / self.context.inputs.items
        place = {"step": progress.step, "epoch": round(epoch, 4)}
        totals = {"target_tokens": progress.target_tokens, "seconds": round(progress.seconds, 3)}
        self.logger.log_metrics(
            {**place, **figures, **totals}, f"step {progress.step:,} · epoch {epoch:.2f} · {words}"
        )
        with self.logger.optional("the trackers cannot store this step"):
            self.accelerator.log(figures, step=progress.step)

    def _pass_time(self) -> float:
        """Adds the seconds since the last call to the run's time, and returns them."""
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        self.progress.seconds += passed
        return passed

    def _save(self) -> None:
        """Writes a checkpoint, and deletes surplus ones."""
        self._check_weights()
        self._pass_time()
        save_checkpoint(self.accelerator, self.checkpoints, self.progress)
        if self.accelerator.is_main_process:
            prune_checkpoints(
                self.checkpoints,
                save_steps=self.choices.save_steps,
                last_step=self.progress.step if self.is_over else None,
                averaged=self.choices.recipe.run.average_checkpoints,
                best=self.progress.best_step if self._keeps_best else None,
                doubling=self.choices.recipe.run.keep_checkpoints == "doubling",
            )


def _of_middling_length(sources: Iterable[str]) -> list[str]:
    """Returns two sources of middling length, because corpora often begin with many very short ones."""
    by_length = sorted(set(sources), key=lambda source: (len(source), source))
    return by_length[(len(by_length) - 1) // 2 :: max(1, len(by_length) // 4)][:2]


def _in_words(figures: dict[str, float]) -> str:
    if not figures:
        return ""
    return "loss {loss:.3f} · {tokens_per_second:,} tokens/s · learning rate {learning_rate:.2e}".format(**figures)
