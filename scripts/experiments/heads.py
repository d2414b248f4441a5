"""Draws pictures like the paper's figures 3 to 5, of sentences, layers and heads chosen by a rule, not by eye.

    python -m scripts.experiments.heads MODEL sentences.txt --pronouns it its they their --output heads

They show the encoder's self-attention between words; w(i, j) is the weight that word i gives to word j, and it stands
out by w(i, j) minus the mean weight that the sentence's other words give to j. Punctuation and `</s>` are no words.

- `long-distance.png`, figure 3: takes for each word the weight that stands out most to a word at least five away,
  chooses the head with the highest mean of these over all words, and the word for which it is highest. Shows that word
  alone, in all heads of the layer.
- `pronoun.png`, figure 4: does the same for pronouns alone, and words that are not adjacent. Shows the head's whole
  attention on the left, and the pronoun's alone in all heads of the layer on the right.
- `two-heads.png`, figure 5: chooses the two heads of one layer whose weights differ most (half the sum of differences,
  mean over words and then over sentences), and the sentence where the difference is nearest to the mean.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import torch

from scripts.experiments.runs import ExperimentError, command
from scripts.turns import cells
from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.inspection import Attention, attention, plot_attention
from vanilla_transformer.loading.models import load_model

# "Long-distance": the words in figure 3 are up to eight apart.
FAR = 5
# The fewest and most words of a sentence: short ones have no distant words, long ones are unreadable in a picture.
WORDS = (6, 16)


@dataclass(frozen=True)
class Pick:
    """A chosen sentence, layer and head, two words of the sentence, and how far the weight stands out.

    `mean` is the mean of the head over all `count` words that could have been chosen.
    """

    sentence: int
    layer: int
    head: int
    query: int
    key: int
    value: float
    mean: float
    count: int


def standing_out(read: Attention) -> torch.Tensor:
    """Returns w(i, j) minus the mean of other words' weights on j, between words; -1 elsewhere: (N, H, Q, L)."""
    words = are_words(read)
    weights_NHQL = read.weights["encoder"]
    attending = words[:, None].float()
    given = (weights_NHQL * attending).sum(-2, keepdim=True) - weights_NHQL
    others = max(1, int(words.sum()) - 1)
    return (weights_NHQL - given / others).masked_fill(~(words[:, None] & words[None]), -1)


def are_words(read: Attention) -> torch.Tensor:
    """Returns False at punctuation and special tokens, True at words."""
    return torch.tensor([any(map(str.isalpha, text)) and not text.startswith("<") for text in read.source.texts])


def steadiest(all_read: Sequence[Attention], far: int, pronouns: set[str] | None = None) -> Pick:
    """Chooses the head that attends most to words at least `far` away, from all words or pronouns, and where."""
    found: list[tuple[int, int, torch.Tensor]] = []  # Sentence, place, and how far its weights stand out, (N, H, L).
    for number, read in enumerate(all_read):
        places = torch.arange(len(read.source))
        out_NHQL = standing_out(read).masked_fill((places[:, None] - places[None]).abs() < far, -1)
        for place, text in enumerate(read.source.texts):
            if (pronouns is None or text.lower() in pronouns) and out_NHQL[:, :, place].max() > -1:
                found.append((number, place, out_NHQL[:, :, place]))
    if not found:
        what = "two words" if pronouns is None else "a pronoun and a word"
        raise ExperimentError(f"No sentence has {what} that are {far} apart: give others.")
    mean_NH = torch.stack([out_NHL.amax(-1) for _, _, out_NHL in found]).mean(0)
    layer, head = divmod(int(mean_NH.argmax()), mean_NH.shape[1])
    number, place, out_NHL = max(found, key=lambda one: float(one[2][layer, head].max()))
    value, key = out_NHL[layer, head].max(-1)
    return Pick(number, layer, head, place, int(key), float(value), float(mean_NH[layer, head]), len(found))


def two_heads(all_read: Sequence[Attention]) -> tuple[int, int, tuple[int, int], float]:
    """Returns a sentence, a layer, its two heads that differ most, and their mean difference."""
    heads = all_read[0].weights["encoder"].shape[1]
    if heads < 2:
        raise ExperimentError("The model's layers have one head each: there are no two to compare.")
    of_all = torch.stack([_differences(read) for read in all_read])
    mean = of_all.mean(0)
    layer, pair = divmod(int(mean.argmax()), mean.shape[1])
    sentence = int((of_all[:, layer, pair] - mean[layer, pair]).abs().argmin())
    return sentence, layer, list(combinations(range(heads), 2))[pair], float(mean[layer, pair])


def _differences(read: Attention) -> torch.Tensor:
    """Returns half the sum of differences of each two heads, the mean over attending words: (layers, pairs)."""
    weights_NHQL = read.weights["encoder"][:, :, are_words(read)]
    pairs = combinations(range(weights_NHQL.shape[1]), 2)
    moved = [(weights_NHQL[:, one] - weights_NHQL[:, other]).abs().sum(-1).mean(-1) / 2 for one, other in pairs]
    return torch.stack(moved, -1)


def alone(read: Attention, query: int) -> Attention:
    """Keeps only the weights of one word."""
    weights_NHQL = read.weights["encoder"]
    one = torch.arange(weights_NHQL.shape[2])[:, None] == query
    return replace(read, weights={"encoder": weights_NHQL * one})


def by_every_head(read: Attention, pick: Pick) -> list[tuple[Attention, int, int]]:
    """Returns a panel for each head of the layer, with the weights of the picked word alone."""
    one = alone(read, pick.query)
    return [(one, pick.layer + 1, head + 1) for head in range(read.weights["encoder"].shape[1])]


def draw(file: Path, panels: Sequence[tuple[Attention, int, int]]) -> None:
    """Draws one picture, with lines between words for each attention, layer and head, counted from 1."""
    from matplotlib.figure import Figure

    height = 1 + 0.28 * max(len(read.source) for read, _, _ in panels)
    figure = Figure(figsize=(4.5 * len(panels), height), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (read, layer, head) in zip(grid, panels, strict=True):
        plot_attention(read, "encoder", layer, head, "lines", axes)
    figure.savefig(file, dpi=120)


def write(directory: Path, all_read: Sequence[Attention], pronouns: set[str]) -> str:
    """Writes the pictures, and returns a table of the choices."""
    far, refers = steadiest(all_read, FAR), steadiest(all_read, 2, pronouns)
    sentence, layer, heads, differ = two_heads(all_read)
    directory.mkdir(parents=True, exist_ok=True)
    draw(directory / "long-distance.png", by_every_head(all_read[far.sentence], far))
    read = all_read[refers.sentence]
    draw(directory / "pronoun.png", [(read, refers.layer + 1, refers.head + 1), *by_every_head(read, refers)])
    draw(directory / "two-heads.png", [(all_read[sentence], layer + 1, head + 1) for head in heads])

    def words(pick: Pick) -> str:
        texts = all_read[pick.sentence].source.texts
        pair = f"{texts[pick.query]} to {texts[pick.key]}"
        return f"{pair} stands out by {pick.value:.2f}; the head's mean of {pick.count:,} is {pick.mean:.2f}"

    both = " and ".join(str(head + 1) for head in heads)
    rows = [
        ("long-distance.png", far.sentence, far.layer + 1, far.head + 1, words(far)),
        ("pronoun.png", refers.sentence, refers.layer + 1, refers.head + 1, words(refers)),
        ("two-heads.png", sentence, layer + 1, both, f"differ by {differ:.2f} on average"),
    ]
    head = ("picture", "layer", "head", "picked by", "sentence")
    lines = [cells(head), cells(["---"] * len(head))]
    lines += [cells([name, *place, why, _text(all_read[number])]) for name, number, *place, why in rows]
    text = "\n".join([*lines, "", f"{len(all_read)} sentences; layers and heads count from 1.", ""])
    (directory / "heads.md").write_text(text, encoding="utf-8")
    return text


def _text(read: Attention) -> str:
    return " ".join(text for text in read.source.words if not text.startswith("<"))


def main(arguments: Sequence[str]) -> None:
    """Reads the sentences, writes pictures and table, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory or Hub id of a model with an encoder")
    parser.add_argument("sentences", type=Path, help="one a line; those of 6 to 16 words are looked at")
    parser.add_argument("--pronouns", nargs="+", required=True, help="of the sentences' language, in small letters")
    parser.add_argument("--read", type=int, default=500, help="so many of them, from the first on")
    parser.add_argument("--output", type=Path, required=True, help="directory for the pictures and heads.md")
    options = parser.parse_args(arguments)
    lines = [line for line in read_lines(options.sentences) if WORDS[0] <= len(line.split()) <= WORDS[1]]
    if not lines or options.read < 1:
        raise ExperimentError(f"{options.sentences} has no line of {WORDS[0]} to {WORDS[1]} words that is to be read.")
    model, tokenizer = load_model(options.model, device="cpu", translates=False)
    all_read = []
    for line in lines[: options.read]:
        read = attention(model, tokenizer, line)
        read.select("encoder", 1, 1)  # Refuses a model without an encoder.
        all_read.append(read.words())
    print(write(options.output, all_read, {word.lower() for word in options.pronouns}))


if __name__ == "__main__":
    with command("scripts.experiments.heads"):
        main(sys.argv[1:])
