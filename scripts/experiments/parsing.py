"""Section 6.3 without a treebank: trains a parser on trees that a small grammar generates, and scores it.

    python -m scripts.experiments.parsing DIRECTORY

Writes train.mrg, dev.mrg and test.mrg, trains on them as a user would train on a treebank, and prints the score on
test. The sentences of test occur in neither of the other two.
"""

import argparse
import random
from pathlib import Path
from typing import Any

from scripts.experiments.runs import command
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train

# The productions of each constituent; a tag produces one of its words. The first production ends every chain. No two
# trees have the same words: modifiers of a noun follow "of" or stand between commas, modifiers of a verb do neither.
GRAMMAR: dict[str, list[list[str]]] = {
    "S": [["NP-SBJ", "VP", "."], ["PP", ",", "NP-SBJ", "VP", "."]],
    "NP-SBJ": [["NNP"], ["DT", "NN"], ["DT", "JJ", "NN"]],
    "NP": [["DT", "NN"], ["NNP"], ["DT", "JJ", "NN"], ["NP-1", "PP-OF"], ["NP-1", ",", "SBAR", ","]],
    "NP-1": [["DT", "NN"], ["DT", "JJ", "NN"]],
    "VP": [["VBZ"], ["VBZ", "NP"], ["VBZ", "NP", "PP"], ["VBZ", "SBAR"]],
    "PP": [["IN", "NP"]],
    "PP-OF": [["OF", "NP"]],
    "SBAR": [["WDT", "S-NOM"]],
    "S-NOM": [["VP"]],
}
WORDS = {
    "DT": ["the", "a", "every", "this"],
    "NN": ["dog", "cat", "tree", "teacher", "ball", "park", "house", "river"],
    "JJ": ["old", "small", "green", "quiet"],
    "NNP": ["Anna", "Ben", "Clara"],
    "VBZ": ["sees", "finds", "likes", "knows", "follows"],
    "IN": ["in", "near", "behind"],
    "OF": ["of"],
    "WDT": ["that", "which"],
    ",": [","],
    ".": ["."],
}
# Below this depth every constituent takes its first production. Sentences then have up to 22 words; with up to 40, too
# few of them would be seen.
DEEPEST = 2


def tree(draw: random.Random, label: str = "S", depth: int = 0) -> str:
    """Draws a bracketed constituent from the grammar."""
    if label in WORDS:
        return f"({label} {draw.choice(WORDS[label])})"
    ways = GRAMMAR[label]
    way = ways[0] if depth > DEEPEST else draw.choice(ways)
    return f"({label} {' '.join(tree(draw, part, depth + 1) for part in way)})"


def write_treebank(directory: Path, sizes: dict[str, int], seed: int = 1) -> None:
    """Writes this many trees into each file, none of them twice."""
    draw, seen = random.Random(seed), set[str]()
    for name, size in sizes.items():
        trees: list[str] = []
        while len(trees) < size:
            drawn = tree(draw)
            if drawn not in seen:
                seen.add(drawn)
                trees.append(drawn)
        (directory / f"{name}.mrg").write_text("".join(f"( {drawn} )\n" for drawn in trees), encoding="utf-8")


def main(words: list[str] | None = None) -> None:
    """Writes the treebank, and trains on it."""
    parser = argparse.ArgumentParser("python -m scripts.experiments.parsing", description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--trees", type=int, default=400, help="trees of test; train has 40 times as many, dev half")
    parser.add_argument("--max-steps", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=1, help="of the trees and of the training")
    options = parser.parse_args(words)
    options.directory.mkdir(parents=True, exist_ok=True)
    sizes = {"train": 40 * options.trees, "dev": options.trees // 2, "test": options.trees}
    write_treebank(options.directory, sizes, options.seed)
    corpora: dict[str, Any] = {name: (str(options.directory / f"{name}.mrg"),) for name in sizes}
    recipe = Recipe.of(
        **corpora,
        tokenizer_algorithm="presplit",
        preset="tiny",
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.1,
        batch_tokens=1_024,
        batches_per_step=2,
        max_steps=options.max_steps,
        # With the full rate of Eq. 3, so short a warm-up leads to rates at which little is learned.
        learning_rate_scale=0.35,
        warmup_steps=min(500, max(1, options.max_steps // 5)),
        seed=options.seed,
        metrics=("bracketing",),
        num_beams=4,
        length_penalty=0.3,
        max_length_beyond_source=300,
        output=str(options.directory / "model"),
    )
    train(recipe)


if __name__ == "__main__":
    with command("scripts.experiments.parsing"):
        main()
