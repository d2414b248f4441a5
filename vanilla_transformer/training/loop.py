"""The training loop (section 5.2): batch, loss, backward, step, log, evaluate, save."""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate.utils import set_seed
from tqdm import tqdm

from vanilla_transformer.data.batching import share
from vanilla_transformer.data.preparation import PreparedCorpus
from vanilla_transformer.errors import DivergenceError, RunError, SettingError
from vanilla_transformer.loading.models import move
from vanilla_transformer.machine import keep_freed_memory, torch_as_usual
from vanilla_transformer.progress import is_terminal, show
from vanilla_transformer.recipe.defaults import device_facts, duration, tokens_in_one_batch
from vanilla_transformer.recipe.reading import named_recipe
from vanilla_transformer.recipe.schema import Recipe, in_words
from vanilla_transformer.tasks import Batch, RowRandom, task_for
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
from vanilla_transformer.training.finalize import finalize
from vanilla_transformer.training.inputs import LocalStep, local_steps, make_plan, one_ahead, pinned
from vanilla_transformer.training.model import (
    build_model,
    compile_layers,
    has_tf32,
    keep_start,
    make_optimizer,
    make_schedule,
    training_kernels,
)
from vanilla_transformer.training.processes import (
    StopRequest,
    explain_lost_processes,
    from_main_process,
    is_launched,
    is_main_process,
)
from vanilla_transformer.training.run_directory import AlreadyFinished, RunDirectory, output_path
from vanilla_transformer.training.setup import RunContext, start_run
from vanilla_transformer.training.summary import TrainedRun

# On an accelerator, reading a number waits for all earlier work; this many steps share one wait.
STEPS_PER_READING = 10
# Each step whose gradients overflow float16 is left out and halves the factor on the loss, from 65,536 on.
MIN_SCALE = 1.0
# Measuring the time of a step takes this long.
SECONDS_OF_MEASURING = 6


def train(recipe: Recipe | str | Path | None = None, **settings: object) -> TrainedRun:
    """Trains from raw text to a model directory.

    `train("cmudict", max_steps=300)` is `vanilla-transformer train cmudict --max-steps 300`, in this process only. A
    run that was stopped in its directory continues from its newest checkpoint, to the same weights. If the run is
    finished, nothing is done.

    Args:
        recipe: A `Recipe`, the name of one that comes with the package, or a YAML file; only the settings if None.
        settings: Options that override the recipe's, such as `train=("corpus.en", "corpus.de")` and
            `output="my-model"`. A recipe with a name writes to a directory of that name unless `output` gives another.

    Raises:
        ValueError, OSError: Data, recipe, output or disk do not allow the run; the message says what to
            do.
        KeyboardInterrupt: Ctrl-C was pressed. Everything is saved.
        SystemExit: Another signal requested the end. Everything is saved. The code is 128 plus the signal's number.
    """
    if recipe is None or isinstance(recipe, Recipe):
        recipe = (recipe or Recipe()).with_options(**settings)
    else:
        recipe = named_recipe(recipe, settings)
    if (recipe.run.processes or 1) > 1 and not is_launched():
        raise SettingError(
            f"processes is {recipe.run.processes}, but a call from Python trains in one process: leave it "
            "out, or use the command `train`."
        )
    return train_by(recipe)


@torch_as_usual()
def train_by(recipe: Recipe, *, finish: bool = False, begun: float | None = None) -> TrainedRun:
    """`train` by a whole recipe.

    Args:
        finish: A run that was stopped ends with the model of its last checkpoint.
        begun: When the command began, on the clock of `time.perf_counter`; the call itself if None.
    """
    output = output_path(recipe)
    if finish and not has_checkpoints(RunDirectory(output).checkpoints):
        raise RunError(f"There is no checkpoint in {output} to make a model of.")
    try:
        with explain_lost_processes(), start_run(recipe, begun) as context:
            stopped_by = _follow(context, finish)
    except AlreadyFinished as finished:
        if is_main_process():
            show(str(finished))
        return TrainedRun(output)
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
    if stopped_by:
        raise SystemExit(128 + stopped_by)
    return TrainedRun(output)


def _follow(context: RunContext, finish: bool) -> int:
    """Runs from the first step to the last file, or until a signal stops it, whose number is returned."""
    run, accelerator, logger = context.run, context.accelerator, context.logger
    given = context.recipe.given().items()
    settings = {name: in_words(one) if isinstance(one, list) else one for name, one in given}
    mine = {"wandb": {"name": run.path.absolute().name, "dir": str(run.path)}}
    accelerator.init_trackers("vanilla-transformer", settings, mine)
    loop = TrainingLoop(context)
    recipe = loop.recipe
    if accelerator.is_main_process:
        run.reopen(recipe)
    if finish:
        loop.max_steps = loop.progress.step
    with StopRequest() as stop:
        loop.run(stop)
    step = loop.progress.step
    if not loop.is_over:
        logger.info(
            f"Stopped after step {step:,} with everything saved: run the same command again to continue; with "
            "--finish it makes a model of what is there."
        )
        return stop.signal or signal.SIGTERM
    if recipe.optimization.max_minutes or loop.max_steps == step:
        recipe = recipe.with_options(max_steps=step, max_minutes=None)
    if accelerator.is_main_process:
        run.write_recipe(recipe)
    with loop.uncompiled():
        scores = finalize(replace(context, recipe=recipe), loop.plain_model, loop.progress)
    with logger.optional("the trackers cannot store the scores"):
        accelerator.log({f"{part}/{one.name}": one.value for part in scores for one in scores[part]}, step=step)
    return 0


def _samples(sources: Iterable[str]) -> list[str]:
    """Returns two of the sources, of middling length; corpora often begin with their shortest, several times."""
    by_length = sorted(set(sources), key=lambda source: (len(source), source))
    return by_length[(len(by_length) - 1) // 2 :: max(1, len(by_length) // 4)][:2]


class TrainingLoop:
    """A run's model, optimizer and position in the data, and the steps that advance them.

    Attributes:
        recipe: That of the context; where it has minutes instead of steps, with the schedule of those that fit.
    """

    def __init__(self, context: RunContext) -> None:
        recipe, accelerator, inputs, logger = context.recipe, context.accelerator, context.inputs, context.logger
        self.recipe, self.accelerator, self.logger, self.budget = recipe, accelerator, logger, context.budget
        self.task, self.tokenizer = task_for(recipe), inputs.tokenizer
        self.corpus, self.dev, self.checkpoints = inputs.train, inputs.dev, context.run.checkpoints
        dev_text = inputs.dev_text if self.task.form.parallel else None
        self.samples = [] if dev_text is None else _samples(dev_text["source"])
        self.max_steps: float = math.inf
        dev_tokens = "" if self.dev is None else self.dev.tokens
        self.progress = Progress(data=self.corpus.tokens, dev=dev_tokens, processes=accelerator.num_processes)
        self.reading_steps = 1 if accelerator.device.type == "cpu" else STEPS_PER_READING
        self.items_of_an_epoch = inputs.items
        self.pin = accelerator.device.type == "cuda"
        self.tf32 = recipe.optimization.tf32 and has_tf32(accelerator.device)

        keep_freed_memory()
        set_seed(recipe.optimization.seed)
        model, origin = build_model(recipe, self.task, self.checkpoints)
        if origin:
            logger.info(origin)
            if accelerator.is_main_process:
                keep_start(model, self.checkpoints)
        model = move(model, accelerator.device)
        self.collate = partial(self.task.collate, config=model.config)
        if accelerator.device.type == "cpu":
            # On CPUs the backward pass of torch's fused attention is slower: half as many tokens per second.
            model.set_attn_implementation("eager")
        self.uncompiled: Callable[[], AbstractContextManager[object]] = nullcontext
        if recipe.optimization.compile:
            compile_layers(model)
            # Decoding and the loss on dev have other shapes and modes: each would wait for code of its own.
            self.uncompiled = partial(torch.compiler.set_stance, "force_eager")
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        if recipe.optimization.precision == "float16":
            # accelerate scales losses by it, steps and saves it, as in its own mixed precision.
            accelerator.scaler = torch.amp.GradScaler(accelerator.device.type)
        self.plain_model = model
        self.model, self.optimizer = accelerator.prepare(model, make_optimizer(learned, recipe, accelerator.device))
        save_plain_weights(accelerator, model)
        self.learning_rate = 0.0
        self.unread_loss = torch.zeros((), device=accelerator.device)
        self.figures: dict[str, float] = {}
        self._clock = 0.0
        self._begun_at, self._begun_after = 0.0, 0
        if context.checkpoint is None and recipe.optimization.max_minutes is not None:
            self.recipe = context.plan_for_time(self._seconds_per_step())
        self._begin(context.checkpoint)

    @property
    def is_over(self) -> bool:
        """Tells whether the last step is done, or the patience with `dev` is used up."""
        impatient = (
            self.recipe.evaluation.patience is not None
            and self.progress.evaluations_without_gain >= self.recipe.evaluation.patience
        )
        return self.progress.step >= self.max_steps or impatient

    @property
    def _keeps_best(self) -> bool:
        """Tells whether the result is the step of the lowest loss on `dev`: that of the start may already be it."""
        return self.recipe.start.from_model is not None and self.dev is not None

    def _seconds_per_step(self) -> float:
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

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Begins the recipe's schedule, or returns to a checkpoint and drops records made after it."""
        rates, run = self.recipe.optimization, self.recipe.run
        self.max_steps, self.save_steps, self.log_steps = rates.max_steps or math.inf, run.save_steps, run.log_steps
        self.eval_steps = self.recipe.evaluation.eval_steps
        d_model, optimizer = self.plain_model.config.d_model, self.optimizer.optimizer
        schedule = make_schedule(
            optimizer, d_model, rates.warmup_steps, rates.learning_rate_scale, rates.learning_rate
        )
        self.schedule = self.accelerator.prepare(schedule)
        set_seed(rates.seed, device_specific=True)
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
        self.logger.info(f"Going on from the checkpoint of step {checkpoint.step:,}.")
        if self.progress.processes != begun.processes:
            self.logger.info(
                f"The number of processes was {self.progress.processes} and is now {begun.processes}, so dropout "
                "draws different numbers."
            )
            set_seed(self.recipe.optimization.seed + self.progress.step, device_specific=True)
            self.progress.processes = begun.processes

    def run(self, stop: StopRequest) -> None:
        """Trains to the end, or until a signal asks to stop; in both cases the last step is saved."""
        self.model.train()
        if self.tf32 and self.recipe.optimization.precision == "float32":
            self.logger.info("Products in float32 round their factors to TF32; --no-tf32 keeps them whole.")
        if self.progress.step and from_main_process(self.budget.is_over):
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
                reading_is_due = self._is_due(self.reading_steps, self.log_steps, self.eval_steps, self.save_steps)
                stopping = reading_is_due and self._read_losses(stop)
                if self._is_due(self.log_steps):
                    self._log()
                if self._is_due(self.eval_steps):
                    self._evaluate()
                is_best = self._keeps_best and self.progress.best_step == self.progress.step
                if stopping or is_best or self._is_due(self.save_steps):
                    self._save()
                bar.set_postfix_str(_in_words(self.figures), refresh=False)
                bar.update()
                if stopping:
                    break

    def _remaining_steps(self) -> Iterator[LocalStep]:
        """Yields the steps of epoch after epoch, from the run's current position."""
        progress, accelerator = self.progress, self.accelerator
        device = device_facts(accelerator.device, accelerator.num_processes)
        steps = local_steps(
            self.recipe,
            self.corpus,
            self.collate,
            progress,
            rank=accelerator.process_index,
            processes=accelerator.num_processes,
            pin=self.pin,
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
        if self.recipe.optimization.max_grad_norm:
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.unscale_(self.optimizer.optimizer)
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.optimization.max_grad_norm)
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
        device, precision = self.accelerator.device, self.recipe.optimization.precision
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
        flags = (torch.full_like(self.unread_loss, bool(one)) for one in (stop.signal, self.budget.is_over()))
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
        most = "at most " if self.recipe.evaluation.patience is not None else ""
        return f" · {most}{duration(min(seconds, self.budget.last_step_by - now))} left" if left else ""

    def _evaluate(self) -> None:
        """Measures the loss on `dev`, without label smoothing or dropout."""
        if self.dev is None:
            return
        progress = self.progress
        with self.uncompiled():
            loss = self._dev_loss(self.dev)
            # After 1, 2, 4, 8, ... evaluations.
            if self.accelerator.is_main_process and (progress.step // self.eval_steps).bit_count() == 1:
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
        answers = self.task.answers(self.plain_model, self.tokenizer, self.samples) if self.samples else []
        for sample, answer in zip(self.samples, answers, strict=True):
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
        for step in make_plan(dev, self.recipe).epoch(0):
            items += step.items
            for rows in share(step, self.accelerator.process_index, self.accelerator.num_processes):
                batch = self.collate(dev.rows(rows), RowRandom(self.recipe.optimization.seed, 0, rows))
                batch = pinned(batch) if self.pin else batch
                total += self._loss(self.plain_model, batch, items=1)
        self.plain_model.train()
        return self.accelerator.reduce(total, "sum").item() / items

    def _record(self, figures: dict[str, float], words: str) -> None:
        """Writes figures of this step to metrics.jsonl, the log and the trackers."""
        self._pass_time()
        progress = self.progress
        epoch = progress.target_tokens / self.items_of_an_epoch
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
                save_steps=self.save_steps,
                last_step=self.progress.step if self.is_over else None,
                averaged=self.recipe.run.average_checkpoints,
                best=self.progress.best_step if self._keeps_best else None,
                doubling=self.recipe.run.keep_checkpoints == "doubling",
            )


def _in_words(figures: dict[str, float]) -> str:
    if not figures:
        return ""
    return "loss {loss:.3f} · {tokens_per_second:,} tokens/s · learning rate {learning_rate:.2e}".format(**figures)
