"""Makes the scripts importable, and pairs of text for them."""

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture
def argv(monkeypatch):
    """Sets the words of the command line with which a script is called."""
    return lambda *words: monkeypatch.setattr(sys, "argv", ["script", *map(str, words)])


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """Options that name 60 pairs to learn from and 10 held out: numbers, and the same in the other order."""
    directory, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    options = []
    for name, number in (("train", 60), ("dev", 10)):
        lines = [[draw.choice(["one", "two", "three", "four"]) for _ in range(3)] for _ in range(number)]
        (directory / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        (directory / f"{name}.de").write_text("".join(" ".join(line[::-1]) + "\n" for line in lines))
        options.append([f"--{name}", str(directory / f"{name}.en"), str(directory / f"{name}.de")])
    return options
