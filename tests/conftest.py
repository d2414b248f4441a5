"""Small seeded models, commands run in this process, and runs that are killed."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Of the processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch
from browser import free_port, open_browser
from faults import at_update, interrupt
from huggingface_hub import constants
from transformers.utils import logging as transformers_logging

from vanilla_transformer.translation import translator

torch.set_num_threads(1)
# The same examples in every run, however busy the machine is.
hypothesis.settings.register_profile(
    "seeded", derandomize=True, deadline=None, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
hypothesis.settings.load_profile("seeded")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for the tests of a file; playwright drives only one at a time in a process."""
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module", autouse=True)
def seeded_models() -> None:
    """Lets the models that a file's tests share be the same in every run, whichever worker makes them."""
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def seeded_on_one_thread() -> Iterator[None]:
    """Seeds each test, and restores one thread after it: other numbers of threads round sums differently."""
    torch.manual_seed(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def quiet_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switches progress bars off, as the command does before it loads the libraries."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        monkeypatch.setenv(name, "error")
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.enable_progress_bar()


@pytest.fixture
def standard_input(monkeypatch) -> Iterator[Callable[[bytes], None]]:
    """Gives this process a file of these bytes as standard input."""
    with ExitStack() as files:

        def give(content: bytes) -> None:
            file = files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            file.buffer.write(content)
            file.buffer.seek(0)
            monkeypatch.setattr("sys.stdin", file)

        yield give


@pytest.fixture
def run_command(quiet_libraries, capsys, standard_input) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process with these bytes as standard input; returns exit code, output and errors."""
    from vanilla_transformer.cli import main

    def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
        standard_input(stdin)
        try:
            code = main([str(word) for word in words])
        except SystemExit as done:
            code = done.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets commands read three lines at a time, so that few lines are many windows."""
    monkeypatch.setitem(translator.CHUNK_LINES, "cpu", 3)


@pytest.fixture
def unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the Hub one that does not answer, at this address; whoever tries again fails."""
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{address}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("tried again"))
    return address


@pytest.fixture
def train_until() -> Callable:
    """Trains by a recipe until an interrupt instead of the update of the given number."""
    from vanilla_transformer.training.run import train

    def train_until(recipe, update: int) -> None:
        with at_update(update, interrupt, before=True), pytest.raises(KeyboardInterrupt):
            train(recipe)

    return train_until
