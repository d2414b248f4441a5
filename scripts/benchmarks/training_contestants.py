"""The contestants of `train.py`: each trains in a process of its own, which takes steps on request."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from torch.utils.benchmark import Timer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerTokenizer
from vanilla_transformer.cost import training_flops
from vanilla_transformer.data.preparation import PreparedCorpus, StoredCorpus
from vanilla_transformer.evaluation import ALONE
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import Batch, Task, task_for
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.choices import Choices
from vanilla_transformer.training.inputs import Inputs
from vanilla_transformer.training.loop import TrainingLoop
from vanilla_transformer.training.optimizer import has_tf32, training_kernels
from vanilla_transformer.training.processes import StopRequest
from vanilla_transformer.training.run_directory import RunDirectory, RunLogger
from vanilla_transformer.training.setup import RunContext
from vanilla_transformer.training.steps import LocalStep, local_steps, make_plan
from vanilla_transformer.training.summary import describe_device, peak_memory
from vanilla_transformer.training.time_budget import TimeBudget

# More steps than any measurement takes.
WITHOUT_END = 10**8
IGNORED_LABEL = -100


@dataclass(frozen=True)
class Job:
    """A complete recipe, its tokenized text, and a folder for files to write."""

    recipe: Recipe
    directory: Path
    threads: int

    @property
    def task(self) -> Task:
        """Task of the recipe."""
        return task_for(self.recipe)

    @property
    def choices(self) -> Choices:
        """The settings by which ours trains."""
        return Choices.of(self.recipe)

    @property
    def device(self) -> torch.device:
        """Accelerator, if there is one, otherwise the CPU."""
        return torch.accelerator.current_accelerator() or torch.device("cpu")

    def corpus(self) -> StoredCorpus:
        """Returns the tokenized rows to train on."""
        return StoredCorpus(self.directory / "prepared" / "train")

    def tokenizer(self) -> VanillaTransformerTokenizer:
        """Returns the tokenizer of the rows."""
        return VanillaTransformerTokenizer.from_pretrained(self.directory)


class Turns:
    """Lets a training take some steps at a time, measures them, and sends the measurement.

    On an accelerator the time between steps is the processor's, which runs ahead of the device.
    """

    def __init__(self, job: Job, connection: Connection) -> None:
        self.job, self.connection = job, connection
        self.config: Any = job.task.config(job.recipe)
        self.left: int | None = None
        self.start = self.end_of_step = self.between = 0.0
        self.lengths: list[list[torch.Tensor]] = []
        self.all_tokens = 0

    def before_step(self) -> None:
        """Ends the turn after its last step, and waits for the next."""
        if self.left == 0 or self.left is None:
            self.between += time.perf_counter() - self.end_of_step
            self.connection.send(self._figures() if self.left == 0 else {})
            self.left = self.connection.recv()
            if self.left is None:
                raise SystemExit
            self.lengths, self.all_tokens, self.between = [], 0, 0.0
            self.start = self.end_of_step = time.perf_counter()
        self.between += time.perf_counter() - self.end_of_step

    def batch(self, batch: Batch) -> None:
        """Counts the tokens of a batch, without waiting for the device that holds it."""
        masks = [batch["labels"] != IGNORED_LABEL]
        if "attention_mask" in batch:
            # Where source and target are one text, positions without a label are masked or padding.
            masks = [batch["attention_mask"], *(masks if self.config.is_encoder_decoder else [])]
        self.lengths.append([mask.sum(1) for mask in masks])
        self.all_tokens += sum(mask.numel() for mask in masks)

    def after_step(self) -> None:
        """Counts a finished step."""
        assert self.left is not None
        self.left -= 1
        self.end_of_step = time.perf_counter()

    def _figures(self) -> dict[str, float]:
        device = self.job.device
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds = time.perf_counter() - self.start
        lengths = [torch.cat(side).cpu().numpy() for side in zip(*self.lengths, strict=True)]
        memory = peak_memory(device)
        return {
            "seconds": seconds,
            "rows": len(lengths[-1]),
            "tokens": int(lengths[-1].sum()),
            "padding": 1 - sum(int(side.sum()) for side in lengths) / self.all_tokens,
            "between": self.between / seconds,
            "memory": memory,
            "flops": training_flops(self.config, *lengths),
        }


def take_part(name: str, job: Job, connection: Connection) -> None:
    """Runs a contestant's process: trains until told to stop, or sends in one sentence why it cannot."""
    # The compiler might wait forever for worker processes that it starts from here.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.recipe.optimization.seed)
    try:
        if name == PEAK:
            measure_peak(job, connection)
        CONTESTANTS[name].train(job, Turns(job, connection))
    except Exception as error:
        connection.send({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})


def measure_peak(job: Job, connection: Connection) -> None:
    """Answers each turn with the best FLOP/s of products of large matrices in our precision, and the device's name."""
    connection.send({})
    dtype = getattr(torch, job.recipe.optimization.precision)
    while connection.recv():
        speeds = []
        for size in (512, 1024) if job.device.type == "cpu" else (4096, 8192):
            matrix = torch.randn(size, size, device=job.device, dtype=dtype)
            product = Timer("(m @ m)[0, 0].item()", globals={"m": matrix}, num_threads=torch.get_num_threads())
            with training_kernels(has_tf32(job.device)):
                speeds.append(2 * size**3 / min(product.blocked_autorange(min_run_time=0.15).times))
        connection.send({"peak": max(speeds), "device": describe_device(job.device, 1)})
    raise SystemExit


def train_ours(job: Job, turns: Turns) -> None:
    """Trains with this package's loop, from its planned batches to its optimizer."""

    class InTurns(TrainingLoop):
        def _update(self, step: LocalStep) -> None:
            turns.before_step()
            super()._update(step)
            turns.after_step()

        def _loss(self, model: nn.Module, batch: Batch, items: int) -> torch.Tensor:
            turns.batch(batch)
            return super()._loss(model, batch, items)

    accelerator = Accelerator(cpu=job.device.type == "cpu", step_scheduler_with_optimizer=False)
    run, budget = RunDirectory(job.directory), TimeBudget(None, 0.0, 0.0)
    logger = RunLogger(run.path, enabled=False)
    inputs = Inputs(job.recipe, job.tokenizer(), job.corpus(), None, None, None, (None, None))
    context, choices = RunContext(job.task, run, inputs, None, accelerator, ALONE, logger, budget), job.choices
    loop = InTurns(context, choices)
    loop.begin(choices)
    loop.run(StopRequest())


def train_marian(job: Job, turns: Turns, best: bool = False, **settings: Any) -> None:
    """Trains a `MarianMTModel` of the same sizes with `Seq2SeqTrainer`, on random batches of as many pairs as ours."""
    config = turns.config
    model = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            dropout=config.dropout,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=_longest(job.corpus()) + 1,
            pad_token_id=config.pad_token_id,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
        )
    )
    collator = DataCollatorForSeq2Seq(job.tokenizer(), model=model)
    smoothing = {"label_smoothing_factor": turns.config.label_smoothing}
    _train_by(Seq2SeqTrainer, Seq2SeqTrainingArguments, model, collator, job, turns, best, **smoothing, **settings)


def train_gpt2(job: Job, turns: Turns, best: bool = False) -> None:
    """Trains a `GPT2LMHeadModel` of the same sizes with `Trainer`, on as many blocks of text as ours."""
    config = turns.config
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.max_position_embeddings,
            n_embd=config.d_model,
            n_layer=config.decoder_layers,
            n_head=config.num_heads,
            n_inner=config.d_ff,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.attention_dropout,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
        )
    )
    collator = DataCollatorForLanguageModeling(job.tokenizer(), mlm=False)
    _train_by(Trainer, TrainingArguments, model, collator, job, turns, best)


def train_bert(job: Job, turns: Turns, best: bool = False) -> None:
    """Trains a `BertForMaskedLM` of the same sizes with `Trainer`, on random batches of as many texts as ours."""
    config = turns.config
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            hidden_size=config.d_model,
            num_hidden_layers=config.encoder_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.d_ff,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            type_vocab_size=1,
            pad_token_id=config.pad_token_id,
        )
    )
    collator = DataCollatorForLanguageModeling(job.tokenizer(), mlm=True)
    _train_by(Trainer, TrainingArguments, model, collator, job, turns, best)


def _train_by(
    trainer: type[Trainer],
    arguments: type[TrainingArguments],
    model: PreTrainedModel,
    collator: Any,
    job: Job,
    turns: Turns,
    best: bool,
    **settings: Any,
) -> None:
    """Trains with a library trainer at its defaults, or at its best, on random batches of as many rows as ours."""

    class InTurns(trainer):  # type: ignore[misc, valid-type]
        def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            turns.batch(inputs)
            return super().training_step(model, inputs, *args, **kwargs)

    class Callback(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            turns.before_step()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            turns.after_step()

    corpus = job.corpus()
    if best:
        settings |= {"train_sampling_strategy": "group_by_length", "bf16": True}
    InTurns(
        model=model,
        args=arguments(
            output_dir=str(job.directory / "trainer"),
            max_steps=WITHOUT_END,
            per_device_train_batch_size=round(len(corpus) / len(make_plan(corpus, job.task, job.choices).epoch(0))),
            use_cpu=job.device.type == "cpu",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **settings,
        ),
        train_dataset=_as_dataset(corpus),
        data_collator=collator,
        callbacks=[Callback()],
    ).train()


def _longest(corpus: PreparedCorpus) -> int:
    return max(int(lengths.max()) for lengths in corpus.lengths.values())


def _as_dataset(corpus: PreparedCorpus) -> Dataset:
    columns = list(corpus.rows(np.arange(len(corpus))).values())
    names = ("input_ids", "labels")[: len(columns)]
    texts = {name: [ids.tolist() for ids in rows] for name, rows in zip(names, columns, strict=True)}
    return Dataset.from_dict({**texts, "length": np.max(list(corpus.lengths.values()), axis=0).tolist()})


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` between one embedding for both sides, sinusoidal positions and the tied output."""

    def __init__(self, config: VanillaTransformerConfig, longest: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        self.dropout = nn.Dropout(config.dropout)
        angles = torch.arange(longest + 1)[:, None] * 10000.0 ** (-torch.arange(0, config.d_model, 2) / config.d_model)
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the summed loss of a batch."""
        assert self.config.pad_token_id is not None and self.config.decoder_start_token_id is not None
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        shifted = shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)
        length = shifted.shape[1]
        padding = attention_mask == 0
        states = self.transformer(
            self._embedded(input_ids),
            self._embedded(shifted),
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=labels.device).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return nn.functional.cross_entropy(
            nn.functional.linear(states, self.embedding.weight).flatten(0, 1),
            labels.flatten(),
            label_smoothing=self.config.label_smoothing,
            reduction="sum",
        )

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        positions = self.get_buffer("positions")[: ids.shape[1]]
        return self.dropout(self.embedding(ids) * self.config.d_model**0.5 + positions)


def train_torch(job: Job, turns: Turns, bfloat16: bool) -> None:
    """Trains `torch.nn.Transformer` in a plain loop, with the batches and the optimizer of this package."""
    corpus, device = job.corpus(), job.device
    model = TorchTransformer(turns.config, _longest(corpus)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=device.type in ("cpu", "cuda"))
    collate = partial(job.task.collate, config=turns.config)
    for step in local_steps(corpus, job.task, job.choices, collate, Progress()):
        turns.before_step()
        for batch in step.batches:
            turns.batch(batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                loss = model(**{name: tensor.to(device) for name, tensor in batch.items()})
            (loss / step.items).backward()
        optimizer.step()
        optimizer.zero_grad()
        turns.after_step()


@dataclass(frozen=True)
class Contestant:
    """A way to train, its name in a table, and its tasks."""

    words: str
    train: Callable[[Job, Turns], None]
    tasks: tuple[str, ...] = ("translation",)


PEAK, OURS = "peak", "ours"
LANGUAGE_MODELING, MASKED = "language-modeling", "masked-language-modeling"
CONTESTANTS = {
    OURS: Contestant("this package", train_ours, ("translation", LANGUAGE_MODELING, MASKED)),
    "marian": Contestant("MarianMTModel, Seq2SeqTrainer's defaults", train_marian),
    "marian-best": Contestant(
        "MarianMTModel, Seq2SeqTrainer, bfloat16, grouped by length", partial(train_marian, best=True)
    ),
    "marian-compiled": Contestant("the same with torch.compile", partial(train_marian, best=True, torch_compile=True)),
    "torch-float32": Contestant("torch.nn.Transformer, our batches, float32", partial(train_torch, bfloat16=False)),
    "torch-bfloat16": Contestant(
        "torch.nn.Transformer, our batches, bfloat16 autocast", partial(train_torch, bfloat16=True)
    ),
    "gpt2": Contestant("GPT2LMHeadModel, Trainer's defaults", train_gpt2, (LANGUAGE_MODELING,)),
    "gpt2-best": Contestant(
        "GPT2LMHeadModel, Trainer, bfloat16", partial(train_gpt2, best=True), (LANGUAGE_MODELING,)
    ),
    "bert": Contestant("BertForMaskedLM, Trainer's defaults", train_bert, (MASKED,)),
    "bert-best": Contestant(
        "BertForMaskedLM, Trainer, bfloat16, grouped by length", partial(train_bert, best=True), (MASKED,)
    ),
}
TASKS = CONTESTANTS[OURS].tasks
