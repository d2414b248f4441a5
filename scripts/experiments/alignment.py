"""Measures the alignment error rate of a model's heads: those chosen without labels, and the usual choices.

    python -m scripts.experiments.alignment MODEL --held-out dev.de dev.en --test test.de test.en --links test.align

`--links` has `i-j i-j` on each line, by hand or by another aligner; pairs with links beyond their words are left out.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.extras.inspection import Alignment, AlignmentHeads, alignments, choose_alignment_heads, spread
from vanilla_transformer.extras.inspection.alignment import STEPS
from vanilla_transformer.translation import load_model

Links = set[tuple[int, int]]


def error_rate(found: Sequence[Iterable[tuple[int, int]]], gold: Sequence[Links]) -> float:
    """Returns 1 - 2 |A and S| / (|A| + |S|), for links that are all sure."""
    shared = sum(len(set(one) & other) for one, other in zip(found, gold, strict=True))
    return 1 - 2 * shared / (sum(len(set(one)) for one in found) + sum(map(len, gold)))


def read_links(line: str) -> Links:
    """Parses a line of links in Pharaoh's format."""
    return {(int(source), int(target)) for source, target in (link.split("-") for link in line.split())}


def _fits(source: str, target: str, links: Links) -> bool:
    lengths = len(source.split()), len(target.split())
    return bool(links) and all(i < lengths[0] and j < lengths[1] for i, j in links)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--held-out", nargs=2, required=True, type=Path)
    parser.add_argument("--test", nargs=2, required=True, type=Path)
    parser.add_argument("--links", required=True, type=Path)
    parser.add_argument("--pairs", type=int, default=100, help="to choose on, from the whole file")
    options = parser.parse_args(arguments)
    model, tokenizer = load_model(options.model, device="cpu")
    held_out = spread(_pairs(options.held_out), options.pairs)
    choice = choose_alignment_heads(model, tokenizer, *zip(*held_out, strict=True))
    links = map(read_links, read_lines(options.links))
    # The file of links may be longer: an aligner is trained on more pairs than are tested.
    test = [(*pair, gold) for pair, gold in zip(_pairs(options.test), links, strict=False) if _fits(*pair, gold)]
    sources, targets, gold = zip(*test, strict=True)

    def rate(heads: AlignmentHeads) -> float:
        found: list[Alignment] = alignments(model, tokenizer, sources, targets, heads=heads)
        return error_rate([one.links for one in found], gold)

    # A recurrent model has one layer of attention, however many layers it has.
    layers = sorted({layer for layer, _ in AlignmentHeads.every(model, "output").heads})
    rows = [(f"chosen: {choice.heads}, agreement {choice.agreement:.2f}", choice.heads)]
    rows += [
        (f"{step}, layer {layer}, mean of heads", AlignmentHeads.from_layers(model, [layer], step))
        for step in STEPS
        for layer in layers
    ]
    rows.append(("output, last layer's first head", AlignmentHeads.from_layers(model, [(layers[-1], 0)], "output")))
    print(f"{len(test)} pairs, heads chosen on {choice.pairs}\n\n| heads | error rate |\n|---|---|")
    for name, heads in rows:
        print(f"| {name} | {rate(heads):.3f} |")


def _pairs(files: Sequence[Path]) -> list[tuple[str, str]]:
    source, target = (list(read_lines(file)) for file in files)
    return [pair for pair in zip(source, target, strict=True) if all(map(str.strip, pair))]


if __name__ == "__main__":
    main()
