"""What do the same minutes of one core teach elsewhere? Trains another program's translator on the same pairs.

    OMP_NUM_THREADS=1 taskset -c 0 python -m scripts.experiments.elsewhere marian --train 20000.en 20000.de \\
        --test test.en test.de --minutes 10

`marian` is transformers' `Seq2SeqTrainer` with a `MarianMTModel` of our size and its best settings on a CPU;
`tutorial` is the loop of PyTorch's tutorial on translation with `nn.Transformer`, its sizes and rate. Both have as
many sub-words as ours, of sentencepiece. They train for all of the minutes, by the clock of the process, and
are scored after them.
"""

import io
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import sacrebleu
import sentencepiece
import torch
import tyro
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from tyro.conf import Positional

PAD, UNKNOWN, START, END = range(4)
IGNORED = -100
MAX_TOKENS = 100
WARMUP = 0.2  # As a share of the time.
Example = dict[str, list[int]]


@dataclass(frozen=True)
class Elsewhere:
    """Train a translator with another program for some minutes, and print its sacreBLEU on test."""

    program: Positional[Literal["marian", "tutorial"]]
    train: tuple[Path, Path]
    test: tuple[Path, Path]
    minutes: float = 10
    vocab_size: int = 4_000
    learning_rate: Annotated[float, tyro.conf.arg(help="the highest of marian")] = 1e-3
    seed: int = 1

    def run(self) -> None:
        """Trains, translates the distinct sources of test, and scores them against all its lines."""
        torch.manual_seed(self.seed)
        sides = [path.read_text(encoding="utf-8").splitlines() for path in self.train]
        pieces = learn_pieces([*sides[0], *sides[1]], self.vocab_size)
        encoded = zip(*map(pieces.encode, sides), strict=True)
        pairs = [{"input_ids": source, "labels": target} for source, target in encoded]
        translate = {"marian": self.marian, "tutorial": self.tutorial}[self.program](pairs)
        sources, references = (path.read_text(encoding="utf-8").splitlines() for path in self.test)
        distinct = sorted(set(sources), key=len)
        results: dict[str, str] = {}
        with torch.inference_mode():
            for lines in (distinct[start : start + 50] for start in range(0, len(distinct), 50)):
                ids = translate(padded([[*line, END] for line in pieces.encode(lines)])).tolist()
                rows = [row[1 : row.index(END)] if END in row else row[1:] for row in ids]
                results |= dict(zip(lines, pieces.decode(rows), strict=True))
        bleu = sacrebleu.corpus_bleu([results[source] for source in sources], [references])
        print(f"{bleu.score:.2f} sacreBLEU on {len(sources):,} lines of test")

    def marian(self, pairs: list[Example]) -> Callable[[Tensor], Tensor]:
        """Trains a `MarianMTModel` with `Seq2SeqTrainer`; its rate falls in a line to zero at the end of the time."""
        sizes: Any = {"layers": 2, "attention_heads": 4, "ffn_dim": 1024}
        model: Any = MarianMTModel(
            MarianConfig(
                vocab_size=self.vocab_size,
                d_model=256,
                dropout=0.1,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=PAD,
                eos_token_id=END,
                forced_eos_token_id=None,
                decoder_start_token_id=START,
                **{f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()},
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), self.learning_rate, (0.9, 0.98), 1e-9, fused=True)
        schedule = LambdaLR(optimizer, lambda step: min(self.share_of_time() / WARMUP, 1 - self.share_of_time()))
        best: Any = {"label_smoothing_factor": 0.1, "train_sampling_strategy": "group_by_length", "bf16": True}
        rest: Any = {"max_steps": 10**6, "per_device_train_batch_size": 64, "use_cpu": True, "save_strategy": "no"}
        trained = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(**best, **rest, report_to=[], seed=self.seed),
            train_dataset=pairs,
            data_collator=batch,
            callbacks=[TimeLimit(self)],
            optimizers=(optimizer, schedule),
        ).train()
        self.report(trained.global_step)
        model.eval()
        return lambda ids: model.generate(
            ids, attention_mask=ids != PAD, num_beams=4, max_new_tokens=MAX_TOKENS, bad_words_ids=[[PAD]]
        )

    def tutorial(self, pairs: list[Example]) -> Callable[[Tensor], Tensor]:
        """Trains the tutorial's model with its loop; translates greedily, as it does."""
        model = Tutorial(self.vocab_size)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0001, betas=(0.9, 0.98), eps=1e-9)
        loader = DataLoader(pairs, 128, shuffle=True, collate_fn=batch)  # type: ignore[arg-type, var-annotated]
        batches, steps = itertools.chain.from_iterable(itertools.repeat(loader)), 0
        while self.share_of_time() < 1:
            one = next(batches)
            logits = model(one["input_ids"], one["decoder_input_ids"])
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits.flatten(0, 1), one["labels"].flatten()).backward()
            optimizer.step()
            steps += 1
        self.report(steps)
        model.eval()
        return model.greedily

    def report(self, steps: int) -> None:
        """Prints what training came to."""
        print(f"{steps:,} steps in {self.minutes * self.share_of_time():.1f} minutes")

    def share_of_time(self) -> float:
        """Returns the share of the minutes that the process has computed."""
        return time.process_time() / (60 * self.minutes)


@dataclass
class TimeLimit(TrainerCallback):
    """Ends training with the time."""

    options: Elsewhere

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends training if the time is over."""
        control.should_training_stop = self.options.share_of_time() >= 1


class Tutorial(nn.Module):
    """The tutorial's model: three layers of width 512 with 8 heads, an embedding for each side."""

    def __init__(self, vocab_size: int, width: int = 512) -> None:
        super().__init__()
        self.transformer = nn.Transformer(width, 8, 3, 3, dim_feedforward=512, dropout=0.1, batch_first=True)
        self.embeddings = nn.ModuleList(nn.Embedding(vocab_size, width) for _ in range(2))
        self.generator = nn.Linear(width, vocab_size)
        self.dropout = nn.Dropout(0.1)
        angles = torch.arange(1000)[:, None] * torch.exp(-torch.arange(0, width, 2) * math.log(10_000) / width)
        self.positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        for weights in self.parameters():
            if weights.dim() > 1:
                nn.init.xavier_uniform_(weights)

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Returns the logits of what follows each target token."""
        source, target = (
            self.dropout(embed(ids) * math.sqrt(512) + self.positions[: ids.shape[1]])
            for embed, ids in zip(self.embeddings, (sources, targets), strict=True)
        )
        later = torch.ones(2 * targets.shape[1:], dtype=torch.bool).triu(1)
        is_pad = sources == PAD
        return self.generator(self.transformer(source, target, None, later, None, is_pad, targets == PAD, is_pad))

    def greedily(self, sources: Tensor) -> Tensor:
        """Returns the most probable next tokens, up to five more than the source has."""
        targets = torch.full((len(sources), 1), START)
        for _ in range(sources.shape[1] + 5):
            targets = torch.cat([targets, self(sources, targets)[:, -1:].argmax(-1)], dim=1)
        return targets


def learn_pieces(lines: Sequence[str], vocab_size: int) -> sentencepiece.SentencePieceProcessor:
    """Returns sub-words for both sides."""
    model = io.BytesIO()
    options: Any = {"vocab_size": vocab_size, "pad_id": PAD, "unk_id": UNKNOWN, "bos_id": START, "eos_id": END}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, **options
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def padded(rows: Sequence[Sequence[int]], value: int = PAD) -> Tensor:
    """Returns the rows as one tensor."""
    return pad_sequence([torch.tensor(row[:MAX_TOKENS]) for row in rows], batch_first=True, padding_value=value)


def batch(pairs: Sequence[Example]) -> dict[str, Tensor]:
    """Returns the inputs of a batch, its decoder's, and what is right."""
    sources = padded([[*pair["input_ids"], END] for pair in pairs])
    given = padded([[START, *pair["labels"]] for pair in pairs])
    labels = padded([[*pair["labels"], END] for pair in pairs], IGNORED)
    mask = (sources != PAD).long()
    return {"input_ids": sources, "attention_mask": mask, "decoder_input_ids": given, "labels": labels}


if __name__ == "__main__":
    tyro.cli(Elsewhere).run()
