"""Text of made-up words and models with random weights, for measurements that need no meaning."""

import random
from pathlib import Path
from typing import Any


def write_text(folder: Path, pairs: int, words: int, length: float) -> None:
    """Writes pairs of lines as text.a and text.b, of words as frequent as those of a language.

    Args:
        length: About as many words are in a line, and about as many on the other side.
    """
    draw = random.Random(1)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(words)]
    frequencies = [1 / rank for rank in range(1, words + 1)]
    with Path(folder, "text.a").open("w") as sources, Path(folder, "text.b").open("w") as targets:
        for _ in range(pairs):
            many = max(1, min(4 * length, draw.lognormvariate(0, 0.5) * length))
            for file, spread in ((sources, 1.0), (targets, draw.uniform(0.8, 1.25))):
                file.write(" ".join(draw.choices(known, frequencies, k=max(1, round(many * spread)))) + "\n")


def save_model(folder: Path, vocab_size: int, **sizes: Any) -> Path:
    """Saves a model with random weights, by default base, and a tokenizer whose pieces are words of the text."""
    import torch

    import vanilla_transformer as vt

    lines = Path(folder, "text.a").read_text().splitlines()
    pieces = len({word for line in lines for word in line.split()})
    tokenizer = vt.train_tokenizer(lines, min(vocab_size, pieces), algorithm="presplit")
    torch.manual_seed(1)
    config = vt.VanillaTransformerConfig.from_preset("base", vocab_size=vocab_size, **sizes)
    vt.VanillaTransformerForConditionalGeneration(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"
