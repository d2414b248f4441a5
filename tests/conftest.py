"""Small seeded models, commands run in this process, and runs that are killed."""

import os
import tempfile
from collections.abc import Callable, Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Of the processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch
from faults import at_update
from transformers import GenerationMixin
from transformers.utils import logging

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, engine

torch.set_num_threads(1)
# The same examples in every run, however busy the machine is.
hypothesis.settings.register_profile(
    "seeded", derandomize=True, deadline=None, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
hypothesis.settings.load_profile("seeded")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Restores one thread after each test, because other numbers of threads round sums differently."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def tiny_config() -> VanillaTransformerConfig:
    """Two layers a side, with nothing random in training mode."""
    return VanillaTransformerConfig(
        vocab_size=48,
        d_model=32,
        d_ff=64,
        num_heads=4,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.0,
        label_smoothing=0.0,
    )


@pytest.fixture
def tiny_model(tiny_config: VanillaTransformerConfig) -> VanillaTransformerForConditionalGeneration:
    """A random model of `tiny_config`, in evaluation mode."""
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(tiny_config).eval()


@pytest.fixture
def ways_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes whose search each call of `generate` was given to: the engine's, or the library's."""
    taken: list[str] = []

    def noted(name: str, search):
        def noting(*args, **kwargs):
            found = search(*args, **kwargs)
            if found is not None:
                taken.append(name)
            return found

        return noting

    for name in ("decode", "answer"):
        monkeypatch.setattr(engine, name, noted("engine", getattr(engine, name)))
    for name in ("_beam_search", "_sample"):
        monkeypatch.setattr(GenerationMixin, name, noted("library", getattr(GenerationMixin, name)))
    return taken


@pytest.fixture
def quiet_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switches progress bars off, as the command does before it loads the libraries."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        monkeypatch.setenv(name, "error")
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture
def run_command(quiet_libraries, capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process with these bytes as standard input; returns exit code, output and errors."""
    from vanilla_transformer.cli import main

    def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
            file.buffer.write(stdin)
            file.buffer.seek(0)
            monkeypatch.setattr("sys.stdin", file)
            try:
                code = main([str(word) for word in words])
            except SystemExit as done:
                code = done.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def train_until() -> Callable:
    """Trains by a recipe until an interrupt instead of the update of the given number."""
    from vanilla_transformer.training.loop import train

    def interrupt(optimizer):
        raise KeyboardInterrupt

    def train_until(recipe, update: int) -> None:
        with at_update(update, interrupt, before=True), pytest.raises(KeyboardInterrupt):
            train(recipe)

    return train_until
