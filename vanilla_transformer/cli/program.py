"""Parses the command line, runs the command, and turns errors into one sentence."""

import atexit
import errno
import gc
import os
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from functools import reduce
from io import TextIOWrapper
from operator import or_
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, subcommand

from vanilla_transformer import __version__
from vanilla_transformer.cli.align import Align
from vanilla_transformer.cli.attend import Attend
from vanilla_transformer.cli.average import Average
from vanilla_transformer.cli.convert import Convert
from vanilla_transformer.cli.demo import Demo
from vanilla_transformer.cli.evaluate import Evaluate
from vanilla_transformer.cli.explore import Explore
from vanilla_transformer.cli.export import Export
from vanilla_transformer.cli.generate import Generate
from vanilla_transformer.cli.info import Info
from vanilla_transformer.cli.predict import Predict
from vanilla_transformer.cli.push import Push
from vanilla_transformer.cli.tokenizer import Tokenizer
from vanilla_transformer.cli.train import Train
from vanilla_transformer.cli.translate import Translate
from vanilla_transformer.errors import SettingError
from vanilla_transformer.machine import SPINS, TRAINING_SPINS, prepare_threads
from vanilla_transformer.progress import is_terminal

# torch, transformers and datasets take seconds to load: a command imports them only when it runs, so that help and
# usage errors are instant.

PROGRAM = "vanilla-transformer"
DESCRIPTION = 'The Transformer of "Attention Is All You Need", from raw text to translations.'
ADVICE = (
    "`COMMAND --help` shows the options of a command. --version prints the version; --debug, anywhere, shows the "
    "traceback of an error."
)
_KINDS = (
    *(Train, Translate, Predict, Evaluate, Generate, Demo, Explore, Info, Attend, Align, Average, Tokenizer),
    *(Push, Export, Convert),
)
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_VERBOSITY": "error", "DATASETS_VERBOSITY": "critical"}
WITHOUT_BARS = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
COMMANDS: dict[str, type] = {kind.__name__.lower(): kind for kind in _KINDS}
# tyro never finishes breaking the lines of its help for terminals of fewer than eight columns.
_MIN_COLUMNS = 20
# The extra that installs a package; `train` installs the others.
_EXTRAS = {"gradio": "demo", **dict.fromkeys(("ctranslate2", "sentencepiece"), "export")}


def main(words: list[str]) -> int:
    """Runs the command and returns the exit code: 1 for an error, 2 for a usage error."""
    _prepare_streams()
    prepare_threads(TRAINING_SPINS if words[:1] == ["train"] else SPINS)
    code = 0
    try:
        try:
            _run([_with_home(word) for word in words if word != "--debug"])
        except SystemExit as done:  # Help was printed, or a word was wrong.
            code = done.code if isinstance(done.code, int) else 1
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Another Ctrl-C would interrupt the end.
        return 130
    except BrokenPipeError:  # The reader has closed the pipe.
        return 141
    except BaseException as error:  # A panic in Rust code does not derive from Exception.
        with suppress(OSError):
            if "--debug" in words:
                traceback.print_exc()
            print(f"{PROGRAM}: error: {error_message(error)}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1
    finally:
        _discard_output()


def _prepare_streams() -> None:
    """Opens the standard streams that are closed, and lets standard output contain any character.

    Otherwise, the next opened file would get the number of a closed stream, and with it the messages of libraries.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # Input that is closed is not empty: reading from the null device, opened for writing, is an error.
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n", line_buffering=True)


def _with_home(word: str) -> str:
    """Returns the word with its home folder, which no shell puts into `--output=~/model`."""
    option, equals, value = word.partition("=")
    return f"{option}={os.path.expanduser(value)}" if equals and option.startswith("--") else word


def _run(words: list[str]) -> None:
    if words == ["--version"]:
        print(f"{PROGRAM} {__version__}")
        return
    command = parse(words)
    if not isinstance(command, Train) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingError(
            "Only `train` shares its work among the processes of a launcher such as torchrun: start this command by "
            "itself, or for several devices once for each, with a part of the text and --device."
        )
    # Keeps the libraries' messages off standard error; their own environment variables bring them back.
    for name, value in QUIET.items() if is_terminal(sys.stderr) else (QUIET | WITHOUT_BARS).items():
        os.environ.setdefault(name, value)
    # To look for garbage among the libraries' objects, which stay, takes a third of the time in which they load, and
    # again at the end.
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    command.run()


def parse(words: list[str]) -> Any:
    """Returns the command with its options; tyro prints help and what is wrong, and exits."""
    if shutil.get_terminal_size().columns < _MIN_COLUMNS:
        os.environ["COLUMNS"] = str(_MIN_COLUMNS)
    name = words[0] if words else None
    train = Train.from_words(words[1:]) if name == "train" else None
    kinds = []
    for command, kind in COMMANDS.items():
        # The list of all commands has a line of each.
        brief = None if command == name else (kind.__doc__ or "").partition("\n")[0]
        default: dict[str, Any] = {"default": train} if command == name == "train" else {}
        kinds.append(Annotated[kind, subcommand(command, description=brief, **default)])
    commands: Any = reduce(or_, kinds)
    parsed: Any = tyro.cli(
        commands, args=words, prog=PROGRAM, description=f"{DESCRIPTION}\n\n{ADVICE}", config=(OmitArgPrefixes,)
    )
    if train is not None and parsed.name != train.name:
        raise SettingError(f"The recipe must come before all options: `train {parsed.name} --option value ...`.")
    return parsed


def _discard_output() -> None:
    """Flushes the remaining output; what cannot be written must not fail a second time at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def error_message(error: BaseException) -> str:
    """Returns one line on what failed and what to do about it."""
    message = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(error.name or "", "train")
        return f"The package {error.name} is not installed: run `pip install 'vanilla-transformer[{extra}]'`."
    if isinstance(error, ImportError):
        return f"{message}: `pip check` names packages that do not suit each other."
    if sys.flags.optimize > 1 and "docstring" in message:
        return "transformers needs docstrings, which Python removes with -OO or PYTHONOPTIMIZE=2: use -O instead."
    # Libraries written in Rust pass on the system's error in words, in classes of their own.
    is_of_the_system = "(os error " in message
    if "(os error 28)" in message or getattr(error, "errno", None) == errno.ENOSPC:
        return f"{message}: free some space, and run the same command again."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    # transformers says so of a configuration's field.
    is_of_a_field = type(error).__name__.startswith("StrictDataclass")
    if isinstance(error, OSError | ValueError) or is_of_a_field or is_of_the_system:
        return message if message.endswith("?") else message.rstrip(".") + "."
    # On a CPU torch has no dedicated exception class.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "DefaultCPUAllocator" in message
    ):
        return (
            "Out of memory: in training increase --batches-per-step, in translation reduce --batch-tokens or "
            "--num-beams."
        )
    from huggingface_hub.errors import HTTPError

    if isinstance(error, HTTPError):
        return f"The connection was lost ({message.rstrip('.')}): run the same command again to go on."
    return f"{type(error).__name__}: {message} (this is a bug; --debug shows the traceback)"
