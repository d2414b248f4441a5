"""Makes the scripts importable, and pairs of text for them."""

import sys
from pathlib import Path

import pytest
from small_models import write_reversed

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
SIZES = {"vocab_size": 270, "d_model": 16, "d_ff": 32, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """Options that name 60 pairs to learn from and 10 held out: numbers, and the same in the other order."""
    directory = tmp_path_factory.mktemp("pairs")
    sizes = {"train": 60, "dev": 10}
    return [
        [f"--{name}", *write_reversed(directory, name, size, seed=size, longest=3)] for name, size in sizes.items()
    ]


@pytest.fixture
def options(pairs, tmp_path):
    """Options of an experiment with a tiny model on these pairs, which writes to the folder `table`."""
    rest = {"batch_tokens": 100, "batches_per_step": 2, "max_steps": 3, "warmup_steps": 4, "save_steps": 2}
    settings = {**SIZES, **rest, "eval_steps": 1, "output": tmp_path / "table", "metrics": "chrf"}
    words = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*pairs[0], *pairs[1], *words]


class Parent:
    """Asks for the given numbers of steps, one after another, and keeps the answers."""

    def __init__(self, *steps):
        self.steps, self.answers = list(steps), []

    def recv(self):
        return self.steps.pop(0)

    def send(self, answer):
        self.answers.append(answer)
