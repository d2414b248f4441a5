"""Trains a character-level GPT in a plain torch loop, as a baseline: nanoGPT's model and its setting for a CPU.

Layers normalise before their sub-layers, as in GPT-2, or after them, as in the paper (`--norm post`); all else is the
same. Training blocks begin anywhere in the first nine tenths of the text. The loss is that of every character of the
last tenth, in consecutive blocks, each beginning with the last character of the one before.
"""

import gzip
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F
from tyro.conf import OmitArgPrefixes

_CHARACTERS_A_PASS = 16_384


@dataclass(frozen=True)
class GptLoop:
    """Train a small GPT on the characters of a text, and measure its loss on the end of it."""

    text: Path
    """The text, plain or .gz."""
    norm: Literal["pre", "post"] = "pre"
    """Place of the norms: before or after the sub-layers."""
    layers: int = 4
    """Layers."""
    heads: int = 4
    """Heads of each."""
    width: int = 128
    """Width."""
    block: int = 64
    """Characters of context."""
    batch: int = 12
    """Blocks in a step."""
    steps: int = 2000
    """Steps."""
    minutes: float | None = None
    """Stop after so many minutes of training; the learning rate falls with the time then."""
    rate: float = 1e-3
    """Highest learning rate; it rises to it in a straight line and falls to a tenth of it in half a cosine."""
    warmup: int = 100
    """Steps over which it rises."""
    seed: int = 1337
    """Random seed."""


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and a normalisation."""

    def __init__(self, options: GptLoop) -> None:
        super().__init__()
        width = options.width
        self.heads, self.pre = options.heads, options.norm == "pre"
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.norms = nn.ModuleList([nn.LayerNorm(width, bias=False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        """Applies both sub-layers; no character sees later ones."""
        for norm, sublayer in zip(self.norms, (self._attention, self._feed_forward), strict=True):
            x = x + sublayer(norm(x)) if self.pre else norm(x + sublayer(x))
        return x

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Gpt(nn.Module):
    """GPT-2's model with learned positions, without biases, and with one embedding for input and output."""

    def __init__(self, options: GptLoop, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, options.width)
        self.positions = nn.Embedding(options.block, options.width)
        self.layers = nn.ModuleList([Layer(options) for _ in range(options.layers)])
        self.norm = nn.LayerNorm(options.width, bias=False) if options.norm == "pre" else nn.Identity()
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                sums = name.endswith(("out.weight", "down.weight")) and options.norm == "pre"
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * options.layers) if sums else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of the next character at each position."""
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embedding.weight)


def main(words: Sequence[str]) -> None:
    """Prints the loss and its cost as JSON."""
    options = tyro.cli(GptLoop, prog="scripts.experiments.gpt_loop", args=words, config=(OmitArgPrefixes,))
    train, dev, characters = _read(options.text)
    torch.manual_seed(options.seed)
    model = Gpt(options, characters)
    begun = time.perf_counter()
    steps = _train(options, model, train)
    seconds = time.perf_counter() - begun
    result = {
        "dev_loss": round(_loss(model, dev, options.block), 4),
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "minutes": round(seconds / 60, 2),
        "characters_per_second": round(steps * options.batch * options.block / seconds),
        **{name: value for name, value in asdict(options).items() if name not in ("text", "steps", "minutes")},
    }
    print(json.dumps(result))


def _read(path: Path) -> tuple[Tensor, Tensor, int]:
    """Returns the first nine tenths of a text as character numbers, the rest, and the number of characters."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([numbers[character] for character in text])
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:], len(numbers)


def _train(options: GptLoop, model: Gpt, ids: Tensor) -> int:
    """Trains for the given steps or minutes, and returns the number of steps."""
    decayed = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.99))
    begun, step, done = time.perf_counter(), 0, 0.0
    while done < 1:
        rate = options.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))) * min(1, (step + 1) / options.warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(ids) - options.block, (options.batch,)).tolist()
        block_BT = torch.stack([ids[start : start + options.block + 1] for start in starts])
        loss = F.cross_entropy(model(block_BT[:, :-1]).flatten(0, 1), block_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        minutes = (time.perf_counter() - begun) / 60
        done = step / options.steps if options.minutes is None else minutes / options.minutes
    return step


@torch.no_grad()
def _loss(model: Gpt, ids: Tensor, block: int) -> float:
    """Returns the mean loss of all characters but the first, in nats."""
    blocks = [ids[start : start + block + 1] for start in range(0, len(ids) - 1, block)]
    total = 0.0
    passes = max(1, _CHARACTERS_A_PASS // block)
    for start in range(0, len(blocks) - 1, passes):
        part = torch.stack(blocks[start : min(start + passes, len(blocks) - 1)])
        total += float(F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    last = blocks[-1][None]
    total += float(F.cross_entropy(model(last[:, :-1]).flatten(0, 1), last[:, 1:].flatten(), reduction="sum"))
    return total / (len(ids) - 1)


if __name__ == "__main__":
    main(sys.argv[1:])
