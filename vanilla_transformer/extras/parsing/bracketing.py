"""Table 4: labelled bracketing F1 as `evalb` counts it with COLLINS.prm, for trees written in one line."""

from collections import Counter
from collections.abc import Sequence

from vanilla_transformer import __version__
from vanilla_transformer.extras.parsing.trees import PUNCTUATION, Tree, leaves_of, restore

# These two count as one label (COLLINS.prm's EQ_LABEL), and these are not constituents (its DELETE_LABEL).
_EQUAL = {"PRT": "ADVP"}
_UNCOUNTED = {"", "TOP", "ROOT", "S1"}


def brackets(tree: Tree) -> Counter[tuple[str, int, int]]:
    """Counts the constituents of a tree by label, first word and the word after the last, without punctuation."""
    found: Counter[tuple[str, int, int]] = Counter()

    def walk(part: Tree, start: int) -> int:
        if part.word is not None:
            return start + (part.label not in PUNCTUATION)
        end = start
        for child in part.children:
            end = walk(child, end)
        if end > start and part.label not in _UNCOUNTED:
            found[_EQUAL.get(part.label, part.label), start, end] += 1
        return end

    walk(tree, 0)
    return found


def bracketing_f1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Returns F1 in percent over all constituents of all sentences, and its signature.

    A prediction is scored over the words of its reference; one that is no tree over them is repaired, and counted.
    """
    matched = written = wanted = repaired = 0
    for prediction, (reference, *_) in zip(predictions, references, strict=True):
        words = leaves_of(reference)
        gold = brackets(restore(reference, words)[0])
        tree, repairs = restore(prediction, words)
        mine = brackets(tree)
        matched += (gold & mine).total()
        written += mine.total()
        wanted += gold.total()
        repaired += repairs > 0
    f1 = 200 * matched / (written + wanted) if written + wanted else 0.0
    recall, precision = (100 * matched / number if number else 0.0 for number in (wanted, written))
    figures = f"recall:{recall:.2f}|precision:{precision:.2f}|repaired:{repaired}"
    return f1, f"count:evalb-collins|items:{len(predictions)}|{figures}|version:{__version__}"
