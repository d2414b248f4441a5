"""The settings that a recipe leaves open, chosen from the size of the data and the device, each with its reason."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from vanilla_transformer.cost import numbers_kept_per_token, training_flops
from vanilla_transformer.machine import has_bfloat16_products
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import MODEL_FIELDS, SIZES, SizePreset, Task
from vanilla_transformer.training.optimizer import paper_learning_rate


@dataclass(frozen=True)
class Choices:
    """What a run trains by: a value for each setting that its recipe may leave open.

    Attributes:
        recipe: The recipe of the run with all of these values, as it is saved in the run's directory.
        reasons: A sentence for each choice.
    """

    recipe: Recipe
    reasons: tuple[str, ...]
    precision: Literal["float32", "bfloat16", "float16"]
    batch_tokens: int
    batches_per_step: int
    warmup_steps: int
    learning_rate_scale: float
    eval_steps: int
    save_steps: int
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, reasons: tuple[str, ...] = ()) -> "Choices":
        """Returns the choices that a complete recipe contains."""
        values = {field.name: recipe[field.name] for field in fields(cls)[2:]}
        assert not values.keys() & recipe.open_settings, "resolve has left a setting open"
        return cls(recipe, reasons, **values)


@dataclass(frozen=True)
class CorpusFacts:
    """The size of the training data.

    Attributes:
        pairs: Number of examples, such as pairs.
        tokens: Number of tokens of each column.
        vocab_size: Size of the vocabulary.
        dev_tokens: Number of tokens of each column of `dev`.
        parts: For several corpora, the examples of each corpus, and its examples in an epoch, which may be repeated.
    """

    pairs: int
    tokens: tuple[int, ...]
    vocab_size: int
    dev_tokens: tuple[int, ...] = (0,)
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def passes_per_epoch(self) -> float:
        """How often an epoch contains an example, averaged over the corpora weighted by their shares."""
        return sum(repeated**2 / rows for rows, repeated in self.parts) / self.pairs if self.parts else 1.0


@dataclass(frozen=True)
class DeviceFacts:
    """The device of a run; `memory` is in bytes and per process."""

    kind: str
    cores: int
    memory: int
    bfloat16: bool
    processes: int = 1


# A translation model that is trained on few tokens learns most with two layers per stack, because deeper post-norm
# models do not improve at first. After 10 minutes on one core, 20,000 pairs of Tatoeba give 20.8 sacreBLEU with these
# sizes and 2.9 with 4+4 layers of width 128. After 59 minutes, 100,000 pairs give a dev loss of 1.57 and of 2.20.
SHALLOW: dict[str, object] = {"preset": "small", "encoder_layers": 2, "decoder_layers": 2}
MIN_TOKENS_FOR_DEPTH = 20_000_000
# The dropout for runs of fewer estimated epochs than this. 20,000 pairs give 25.0 sacreBLEU with 0.3 in 17 epochs, and
# 27.1 with 0.1; 28.1 with 0.2 in 25 epochs of small steps. 5,000 pairs give 14.8 with 0.1 in 34 epochs, and 15.6 with
# 0.2.
DROPOUT_IN_PASSES = {20: 0.1, 40: 0.2}
MAX_STEPS = 100_000  # Section 5.2, base.
CPU_HOURS = 1.5
CPU_FLOPS_PER_CORE = {"float32": 55e9, "bfloat16": 100e9}
# The maximum vocabulary of text that is already segmented. Text with more tokens was not segmented at all.
MAX_PIECES = 100_000
# Batches contain some padding, and are rarely full.
SHARE_OF_REAL_TOKENS = 0.92
# On a CPU, bfloat16 is faster only if matrices are wide enough to outweigh the conversions.
CPU_BFLOAT16_FROM_WIDTH = 128
MEMORY_SHARE_OF_A_BATCH = 0.3
# The maximum bytes that a Transformer keeps per token, layer and unit of width: 40 in bfloat16, as measured for base
# on an H200, and twice as many in float32. Other models get a fixed small number of values per batch and layer.
ACCELERATOR_BYTES_KEPT, MAX_NUMBERS_IN_A_BATCH = 80, 1 << 22
# Steps with sentences of a single length pull the weights back and forth. After 1,000 steps of 2,048 tokens in 2 and
# in 4 batches, the WER on CMUdict is 45.7 and 43.9, and the perplexity on Multi30k 10.7 and 10.3; 8 are no better.
MIN_BATCHES = 4
# A translation model that will be trained on fewer tokens than this takes small steps of one batch, because more steps
# fit into the time. In 5 minutes on one core, 20,000 pairs of Tatoeba give 18.5 sacreBLEU after 984 small steps, and
# 13.4 after 351 steps of 2,048 tokens. In many epochs, large steps are better: 5,000 pairs give 16.6 with small steps
# in 112 epochs, and 17.1 with large ones.
MIN_TOKENS_FOR_LARGE_STEPS, MIN_PASSES_FOR_LARGE_STEPS = 8_000_000, 40
SMALL_STEP, SMALL_STEP_WARMUP = 1_024, 600
MAX_TOKENS_IN_A_BATCH = {"cpu": 2_048, "accelerator": 8_192}
# With shorter warm-ups, the learning rate rises so high that small post-norm models stop learning. The longest warm-up
# is the paper's.
MIN_WARMUP, MAX_WARMUP = 2_000, 4_000
# In shorter runs, the warm-up takes a third of the steps, and the rate rises at most to its value after MIN_WARMUP. In
# very short runs it takes two thirds, up to this number of steps. Of 300 steps on 3,000 pairs of Multi30k, 200 are
# best.
VERY_SHORT_WARMUP = 200
# Trained weights continue at the final rate of Eq. 3 in section 5.2, and need fewer epochs.
FINE_TUNING_STEPS_DONE, FINE_TUNING_EPOCHS = MAX_STEPS, 10
# The usual values for recurrent models (Luong et al. 2015 clip to 5). Their rate does not follow Eq. 3.
RECURRENT = {"cell": "lstm", "attention": "luong-general", "learning_rate": 1e-3, "max_grad_norm": 5.0}
# For fine-tuning and for recurrent models.
CONSTANT_RATE_WARMUP = 400
EVALUATIONS = CHECKPOINTS = 50
# The maximum share of the time for evaluating `dev`. A token costs a third of a training token.
EVALUATION_SHARE = 0.1


def choose_vocab_size(recipe: Recipe, task: Task, rows: int) -> tuple[int, list[str]]:
    """Chooses the vocabulary size, on which all other sizes depend, and explains it in a sentence."""
    if recipe.tokenizer.vocab_size is not None:
        return recipe.tokenizer.vocab_size, []
    if recipe.tokenizer.tokenizer_algorithm == "presplit":
        sentence = f"Vocabulary: every token of the segmented text, or the {MAX_PIECES:,} most frequent."
        return MAX_PIECES, [sentence]
    size = _size_preset(task, rows).vocab_size
    return size, [f"Vocabulary: {size:,} tokens, for {rows:,} {task.form.unit}."]


def resolve(
    recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts, steps_in_time: int | None = None
) -> Choices:
    """Chooses a value for each setting that a recipe leaves open, and explains each choice in a sentence.

    Args:
        steps_in_time: The number of steps that fit into `max_minutes`. The speed of the model is measured, so the
            model and its batches are chosen before this number is known.
    """
    metrics = recipe.evaluation.metrics
    if metrics is None:
        metrics = tuple(name for name, metric in task.metrics.items() if metric.by_default)
    # The number of processes is that of the started ones, even if the recipe of an earlier run has another.
    recipe = recipe.with_options(vocab_size=corpus.vocab_size, metrics=metrics, processes=device.processes)
    reasons: list[str] = []

    def fill(chosen: Mapping[str, object], reason: str) -> None:
        nonlocal recipe
        changes = {name: value for name, value in chosen.items() if name in recipe.open_settings}
        if changes:
            recipe = recipe.with_options(**changes)
            if reason:
                reasons.append(reason)

    small_steps = _takes_small_steps(recipe, task, corpus, device)
    fill(*_choose_model(recipe, task, corpus, device))
    fill(*_choose_precision(recipe, device))
    batch_tokens = recipe.optimization.batch_tokens or _batch_tokens(task, corpus)
    if small_steps:
        batch_tokens = min(batch_tokens, SMALL_STEP)
    fill(*_choose_batches(recipe, task, device, batch_tokens, 1 if small_steps else MIN_BATCHES))
    given_warmup = recipe.optimization.warmup_steps
    timed = recipe.optimization.max_minutes is not None  # Such a run needs no last step.
    unmeasured = timed and steps_in_time is None
    steps, warmup_steps, scale, reason = _choose_length(recipe, task, corpus, device, batch_tokens, steps_in_time)
    chosen = {"warmup_steps": warmup_steps, "learning_rate_scale": scale} | ({} if timed else {"max_steps": steps})
    fill(chosen, "" if unmeasured else reason)
    if given_warmup is not None and given_warmup >= steps and reasons and not unmeasured:
        reasons.append(
            f"Warning: none of the {steps:,} steps has the full learning rate, because the warm-up takes "
            f"{given_warmup:,} steps. Give fewer --warmup-steps, or leave the option out."
        )
    if recipe.model.architecture == "recurrent":
        usual = "a learning rate of {learning_rate:g} after the warm-up, and gradients clipped to {max_grad_norm:g}"
        fill(RECURRENT, f"Optimization: unless given, {usual.format(**RECURRENT)}, as usual for recurrent models.")
    if recipe.start.from_model is not None:
        fill(*_choose_fine_tuning(recipe))
    intervals, reason = _choose_intervals(recipe, corpus, steps, batch_tokens)
    fill(intervals, "" if unmeasured else reason)
    return Choices.of(recipe, tuple(reasons))


def check_sizes(recipe: Recipe, task: Task) -> None:
    """Refuses sizes that fit none of the presets that could be chosen, before any text is read."""
    refusals = []
    for preset in [recipe.model.preset] if recipe.model.preset else ["tiny", "small", "base"]:
        try:
            task.config(recipe.with_options(preset=preset))
            return
        except (ValueError, StrictDataclassError) as error:
            refusals.append(error)
    raise refusals[0]


def device_facts(device: torch.device, processes: int) -> DeviceFacts:
    """Returns the device as torch describes it."""
    if device.type == "cuda":
        memory, bfloat16 = torch.cuda.get_device_properties(device).total_memory, torch.cuda.is_bf16_supported(False)
    else:
        import psutil

        memory = psutil.virtual_memory().total // processes
        bfloat16 = device.type == "cpu" and has_bfloat16_products()
    return DeviceFacts(device.type, torch.get_num_threads(), memory, bfloat16, processes)


def _size_preset(task: Task, rows: int) -> SizePreset:
    return next(preset for preset in task.sizes if rows <= preset.rows)


def _choose_model(
    recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts
) -> tuple[dict[str, object], str]:
    sizes = _size_preset(task, corpus.pairs)
    preset = recipe.model.preset or ("small" if (sizes.preset, device.kind) == ("base", "cpu") else sizes.preset)
    chosen: dict[str, object] = {"preset": preset}
    # The paper's presets state their dropout; for our small ones it depends on the size of the data.
    if recipe.model.dropout is None and recipe.model.preset in (None, "tiny", "small"):
        chosen["dropout"] = sizes.dropout
    shallow = _for_few_tokens(recipe, task, corpus, device)
    chosen |= shallow
    config = task.config(recipe.with_options(**chosen))
    chosen |= {name: getattr(config, name) for name in MODEL_FIELDS if hasattr(config, name)}
    rows = f"for {corpus.pairs:,} {task.form.unit} on {_name(device)}"
    why = "; deeper ones learn less from so few tokens" if shallow else ""
    return chosen, f"Model: {chosen['preset']}, {_describe(config)}, {rows}{why}."


def _for_few_tokens(recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts) -> dict[str, object]:
    """Returns the sizes of a translator that reads few tokens; none where it reads many, or the recipe has sizes."""
    if not task.form.parallel or recipe.used("architecture", "preset", "start", *SIZES):
        return {}
    tokens = _tokens_read(recipe, task, corpus, device)
    if tokens >= MIN_TOKENS_FOR_DEPTH:
        return {}
    passes = _passes(tokens, corpus)
    few = [dropout for limit, dropout in DROPOUT_IN_PASSES.items() if passes < limit and recipe.model.dropout is None]
    return SHALLOW | ({"dropout": few[0]} if few else {})


def _passes(tokens: float, corpus: CorpusFacts) -> float:
    return tokens * corpus.passes_per_epoch / max(corpus.tokens)


def _tokens_read(recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts) -> float:
    """Returns roughly how many tokens of a side a shallow model would read, by its epochs or steps and its time."""
    given, tokens = recipe.optimization, max(corpus.tokens)
    planned = _size_preset(task, corpus.pairs).epochs * tokens / corpus.passes_per_epoch
    if given.max_steps is not None:
        planned = given.max_steps * (given.batch_tokens or _batch_tokens(task, corpus))
    if device.kind != "cpu":
        return planned
    fast = device.bfloat16 and given.precision in ("auto", "bfloat16")
    shallow = recipe.with_options(**SHALLOW, precision="bfloat16" if fast else "float32")
    hours = CPU_HOURS if given.max_minutes is None else given.max_minutes / 60
    return min(planned, 3600 * hours * tokens / _cpu_seconds_per_epoch(shallow, task, corpus, device))


def _describe(config: PreTrainedConfig) -> str:
    """Describes layers, width and dropout, as in "6+6 layers of width 512 with dropout 0.1"."""
    cell, width = getattr(config, "cell", None), f"width {config.d_model}"
    if cell is not None:
        layers = f"{config.num_layers}+{config.num_layers} {cell.upper()}"
        return f"{layers} layers of {width} with the attention {config.attention} and dropout {config.dropout:g}"
    stacks = (getattr(config, f"{stack}_layers", 0) for stack in ("encoder", "decoder"))
    layers = "+".join(str(count) for count in stacks if count)
    return f"{layers} layers of {width} with dropout {config.dropout:g}" if layers else width


def _choose_precision(recipe: Recipe, device: DeviceFacts) -> tuple[dict[str, object], str]:
    wide = device.kind != "cpu" or (recipe.model.d_model or 0) >= CPU_BFLOAT16_FROM_WIDTH
    precision: Literal["float32", "bfloat16", "float16"] = "bfloat16" if device.bfloat16 and wide else "float32"
    reason = "this device computes in it" if precision == "bfloat16" else "bfloat16 would not be faster here"
    if device.kind == "cuda" and not device.bfloat16:
        precision, reason = "float16", "this device has no bfloat16"
    return {"precision": precision}, f"Precision: {precision}, {reason}."


def _batch_tokens(task: Task, corpus: CorpusFacts) -> int:
    return min(_size_preset(task, corpus.pairs).batch_tokens, max(corpus.tokens[-1] // 10, 1))


def chooses_steps(recipe: Recipe, task: Task) -> bool:
    """Tells whether a translator trains for some minutes, with sizes of model and steps that are chosen for it."""
    given = recipe.used("architecture", "preset", "start", "batch_tokens", "batches_per_step", *SIZES)
    return recipe.optimization.max_minutes is not None and task.form.parallel and not given


def _takes_small_steps(recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts) -> bool:
    """Tells whether the minutes of a translator are so few that more and smaller steps teach more."""
    if device.kind != "cpu" or device.processes > 1 or not chooses_steps(recipe, task):
        return False  # Several would exchange their gradients more often.
    tokens = _tokens_read(recipe, task, corpus, device)
    return tokens < MIN_TOKENS_FOR_LARGE_STEPS and _passes(tokens, corpus) < MIN_PASSES_FOR_LARGE_STEPS


def _choose_batches(
    recipe: Recipe, task: Task, device: DeviceFacts, batch_tokens: int, min_batches: int
) -> tuple[dict[str, object], str]:
    bytes_per_token = 4 * numbers_kept_per_token(task.config(recipe))
    fitting = int(device.memory * MEMORY_SHARE_OF_A_BATCH / bytes_per_token)
    max_tokens = min(MAX_TOKENS_IN_A_BATCH["cpu" if device.kind == "cpu" else "accelerator"], max(fitting, 1))
    # The same number for each process.
    batches = device.processes * math.ceil(max(min_batches, batch_tokens / max_tokens) / device.processes)
    batches = min(batches, batch_tokens)
    count = recipe.optimization.batches_per_step or batches
    joined = tokens_in_one_batch(task.config(recipe), device)
    one = f", or one of up to {joined:,} tokens with padding" if joined and count > 1 else ""
    sentence = f"Step: up to {batch_tokens:,} tokens a side; batches in a step: {count}{one}."
    return {"batch_tokens": batch_tokens, "batches_per_step": batches}, sentence


def tokens_in_one_batch(config: PreTrainedConfig, device: DeviceFacts) -> int:
    """Returns the tokens, of both sides and padding, up to which a step is one batch; 0 on a CPU.

    An accelerator takes longer to start the operators of several batches than to compute them. A small one, which does
    not, has no memory for a step as one. Of models other than a Transformer little is known, so little is joined.
    """
    if device.kind == "cpu":
        return 0
    if not isinstance(config, VanillaTransformerBaseConfig):
        return MAX_NUMBERS_IN_A_BATCH // config.d_model
    layers = max(getattr(config, f"{stack}_layers", 0) for stack in ("encoder", "decoder"))
    return int(MEMORY_SHARE_OF_A_BATCH * device.memory / (ACCELERATOR_BYTES_KEPT * layers * config.d_model))


def _choose_length(
    recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts, batch_tokens: int, steps_in_time: int | None
) -> tuple[int, int, float, str]:
    epochs = _size_preset(task, corpus.pairs).epochs
    if recipe.start.from_model is not None:
        epochs = min(epochs, FINE_TUNING_EPOCHS)
    tokens = max(corpus.tokens)
    steps_per_epoch = math.ceil(tokens / (batch_tokens * SHARE_OF_REAL_TOKENS))
    steps = math.ceil(epochs * steps_per_epoch / corpus.passes_per_epoch)
    passes = "epochs" if corpus.passes_per_epoch == 1 else "passes over the corpora, by their shares,"
    reason = f"{epochs} {passes} suit {corpus.pairs:,} {task.form.unit}"
    if steps > MAX_STEPS:
        steps, reason = MAX_STEPS, "as many as the paper's base model had"
    seconds_per_step = 0.0
    if device.kind == "cpu":
        seconds_per_step = _cpu_seconds_per_epoch(recipe, task, corpus, device) / steps_per_epoch
        if steps * seconds_per_step > CPU_HOURS * 3600:
            steps, reason = max(1, int(CPU_HOURS * 3600 / seconds_per_step)), "more would take too long on a CPU"
    if recipe.optimization.max_steps is None:
        steps = _rounded(steps)
    else:
        steps, reason = recipe.optimization.max_steps, "as given"
    if steps_in_time is not None and steps_in_time < (recipe.optimization.max_steps or math.inf):
        steps, reason = steps_in_time, f"in {counted(recipe.optimization.max_minutes or 0, 'minute')}"
    warmup, scale = _choose_warmup(recipe, steps)
    is_estimated = seconds_per_step and steps_in_time is None
    time = f", very roughly {duration(steps * seconds_per_step)} on {_name(device)}" if is_estimated else ""
    epochs_done = counted(float(f"{steps / steps_per_epoch:.2g}"), "epoch")
    follows_eq_3 = recipe.optimization.learning_rate is None
    sentence = (
        f"Length: {counted(steps, 'step')}, about {epochs_done}{time} ({reason}); "
        f"the learning rate rises over {counted(warmup, 'step')}"
        f"{f', and is {scale:.2g} times that of Eq. 3' if follows_eq_3 and scale != 1 else ''}."
    )
    return steps, warmup, scale, sentence


def _choose_warmup(recipe: Recipe, steps: int) -> tuple[int, float]:
    """Returns the warm-up of a run of `steps` steps, and the factor on Eq. 3 that limits its peak."""
    given = recipe.optimization
    short = max(1, steps // 3, min(2 * steps // 3, VERY_SHORT_WARMUP))
    small = given.max_minutes is not None and given.batches_per_step == 1
    warmup = min(max(steps // 10, min(short, SMALL_STEP_WARMUP if small else MIN_WARMUP)), MAX_WARMUP)
    # The peak of Eq. 3 grows with the root of 1 / warm-up.
    scale = min(1.0, float(f"{math.sqrt(warmup / MIN_WARMUP):.2g}"))
    if recipe.model.architecture == "recurrent" or recipe.start.from_model is not None:
        warmup, scale = min(max(steps // 10, 1), CONSTANT_RATE_WARMUP), 1.0
    if given.warmup_steps is not None:  # It is used in Eq. 3 unscaled, as in the paper.
        warmup, scale = given.warmup_steps, 1.0
    return warmup, scale if given.learning_rate_scale is None else given.learning_rate_scale


def _choose_fine_tuning(recipe: Recipe) -> tuple[dict[str, object], str]:
    # The rate at which Eq. 3 arrives in section 5.2.
    width, scale = recipe.model.d_model, recipe.optimization.learning_rate_scale
    assert width is not None and scale is not None
    rate = float(f"{paper_learning_rate(FINE_TUNING_STEPS_DONE, width, MAX_WARMUP, scale):.2g}")
    suits = "which suits weights that are already trained"
    return {"learning_rate": rate}, f"Optimisation: a learning rate of {rate:g} after the warm-up, {suits}."


def _choose_intervals(
    recipe: Recipe, corpus: CorpusFacts, steps: int, batch_tokens: int
) -> tuple[dict[str, int], str]:
    evaluation = max(corpus.dev_tokens) / (3 * SHARE_OF_REAL_TOKENS * batch_tokens)  # In steps.
    rarely = math.ceil(evaluation / EVALUATION_SHARE)
    chosen = {
        "eval_steps": min(steps, max(1, steps // EVALUATIONS, rarely)),
        "save_steps": max(1, steps // CHECKPOINTS),
    }
    saves = recipe.run.save_steps or chosen["save_steps"]
    evaluations = recipe.evaluation.eval_steps or chosen["eval_steps"]
    result = f"the last {recipe.run.average_checkpoints} are averaged"
    if recipe.start.from_model is not None and recipe.data.dev:
        result = "the one with the lowest loss on dev is the result, that of the start included"
    every = counted(saves, "step"), counted(evaluations, "step")
    evaluated = f"; loss on dev every {every[1]}" if recipe.data.dev else ""
    return chosen, f"Checkpoint every {every[0]}, {result}{evaluated}."


def counted(number: float, unit: str) -> str:
    """Writes a number with its unit, in the plural unless it is one."""
    return f"{number:,.10g} {unit}{'s' * (number != 1)}"


def _cpu_seconds_per_epoch(recipe: Recipe, task: Task, corpus: CorpusFacts, device: DeviceFacts) -> float:
    mean = [np.array([tokens]) / corpus.pairs for tokens in corpus.tokens]
    flops = corpus.pairs * training_flops(task.config(recipe), *mean)
    # No default on a CPU is float16: its speed is not known.
    speed = CPU_FLOPS_PER_CORE.get(recipe.optimization.precision, CPU_FLOPS_PER_CORE["float32"])
    return flops / (speed * device.cores * device.processes)


def _rounded(steps: int) -> int:
    """Rounds a chosen number to two significant digits."""
    unit = 10 ** max(0, len(str(steps)) - 2)
    return max(1, steps // unit * unit)


def _name(device: DeviceFacts) -> str:
    if device.kind != "cpu":
        return f"{device.processes} × {device.kind}"
    return counted(device.cores * device.processes, "CPU core")


def duration(seconds: float) -> str:
    """Writes a time in a suitable unit."""
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{math.ceil(seconds / 60)} min"
