"""Parses the command line, runs the command, and turns errors into one sentence."""

import contextlib
import io
import itertools
import logging
import operator
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import tyro
from tyro.conf import OmitArgPrefixes

from vanilla_transformer import __version__
from vanilla_transformer.cli.align import Align
from vanilla_transformer.cli.arguments import join_help
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
from vanilla_transformer.cli.streams import check_standard_output, named_in_errors, occupy_closed_streams, print_result
from vanilla_transformer.cli.tokenizer import TokenizerTrain
from vanilla_transformer.cli.train import Train, TrainBriefly
from vanilla_transformer.cli.translate import Translate
from vanilla_transformer.cores import SPINS, TRAINING_SPINS, prepare_threads
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.suggestions import closest

# torch, transformers and datasets take seconds to load: a command imports them only when it runs, so that help and
# usage errors are instant.

PROGRAM = "vanilla-transformer"
DESCRIPTION = 'The Transformer of "Attention Is All You Need", from raw text to translations.'
# By the groups in which the help shows them.
COMMANDS: dict[str, dict[str, type]] = {
    "Use": {
        "train": Train,
        "translate": Translate,
        "predict": Predict,
        "evaluate": Evaluate,
        "generate": Generate,
        "demo": Demo,
    },
    "Look inside": {"explore": Explore, "info": Info, "attend": Attend, "align": Align},
    "Train better": {"average": Average},
    "Data": {"tokenizer train": TokenizerTrain},
    "Share and export": {"push": Push, "export": Export, "convert": Convert},
}
_COMMANDS = ChainMap(*COMMANDS.values())
# The help of these commands shows only their most used options; --help-all shows all of them.
BRIEF: dict[type, type] = {Train: TrainBriefly}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command in `argv` and returns the exit code: 1 for an error, 2 for a usage error."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    occupy_closed_streams()
    prepare_threads(TRAINING_SPINS if words[:1] == ["train"] else SPINS)
    try:
        _run([word for word in words if word != "--debug"])
        with named_in_errors("Standard output"):
            _flush()
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()  # The reader has closed the pipe.
        return 141
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        if debug:
            traceback.print_exc()
        print(f"{PROGRAM}: error: {error_message(error)}", file=sys.stderr)
        _discard_output()
        return 2 if isinstance(error, RecipeError) else 1


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Flushes the remaining output; what cannot be written must not fail a second time at exit."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> None:
    if words == ["--version"]:
        print_result(f"{PROGRAM} {__version__}")
        return
    command = _parse(words)
    quieten_libraries()
    command.run()


def _parse(words: list[str]) -> Any:
    """Returns the command with its options."""
    names = [name for group in COMMANDS.values() for name in group]
    if words and words[0] in ("-h", "--help", "--help-all"):
        _exit_with_help(names)
    name = " ".join(words[:2]) if " ".join(words[:2]) in names else " ".join(words[:1])
    if name not in names:
        below = [other for other in names if name and other.startswith(f"{name} ")]
        if below and words[1:2] and words[1] in ("-h", "--help", "--help-all"):
            _exit_with_help(below)
        _refuse_command(" ".join(words[:2]) if below else name, below or names)
    kind, words = _COMMANDS[name], words[len(name.split()) :]
    if "--help-all" in words:
        words = ["--help" if word == "--help-all" else word for word in words]
    elif {"-h", "--help"} & {*words}:
        kind = BRIEF.get(kind, kind)
    if "--help" in words or "-h" in words:
        join_help(kind)
    return _parse_options(kind, name, words)


def _parse_options(kind: Any, name: str, words: list[str]) -> Any:
    by_recipe = hasattr(kind, "from_words")  # A recipe gives the defaults.
    settings: dict[str, Any] = {"default": kind.from_words(words)} if by_recipe else {}
    settings |= {"prog": f"{PROGRAM} {name}", "config": (OmitArgPrefixes,)}
    message = io.StringIO()
    try:
        with _help_in_full(), contextlib.redirect_stderr(message):
            command = tyro.cli(kind, args=words, **settings)
    except SystemExit as done:
        if done.code:
            _refuse_misspelt(words, tyro.extras.get_parser(kind, **settings)._option_string_actions, name)
            raise RecipeError(_in_a_sentence(message.getvalue(), name)) from None
        raise
    if by_recipe and command.name != settings["default"].name:
        raise RecipeError(f"The recipe must come before all options: `{name} {command.name} --option value ...`.")
    return command


def _exit_with_help(names: Sequence[str]) -> NoReturn:
    """Prints the commands of those names in their groups, and exits."""
    width = min(100, shutil.get_terminal_size().columns)
    blocks = [f"usage: {PROGRAM} COMMAND [OPTIONS]", DESCRIPTION]
    for group, members in COMMANDS.items():
        listed = [name for name in members if name in names]
        lines = [
            textwrap.fill(
                (_COMMANDS[name].__doc__ or "").partition("\n")[0],
                width,
                initial_indent=f"  {name:<18}",
                subsequent_indent=" " * 20,
            )
            for name in listed
        ]
        blocks += ["\n".join([f"{group}:", *lines])] * bool(lines)
    blocks.append(
        "`COMMAND --help` shows the options of a command. --version prints the version; --debug, anywhere, shows the "
        "traceback of an error."
    )
    with named_in_errors("Standard output"):
        print_result("\n\n".join(textwrap.fill(block, width) if "\n" not in block else block for block in blocks))
        _flush()
    raise SystemExit(0)


def _refuse_command(name: str, names: Sequence[str]) -> NoReturn:
    if not name:
        raise RecipeError(f"Name a command, such as `train` or `translate`: `{PROGRAM} --help` lists them.")
    raise RecipeError(f"There is no command {name}: {_advice(name, names, PROGRAM)}")


def _refuse_misspelt(words: Sequence[str], known: Iterable[str], name: str) -> None:
    """Raises RecipeError for the first option that the command does not have."""
    for word in words:
        option = word.partition("=")[0].replace("_", "-")
        if option.startswith("--") and len(option) > 2 and option not in known:
            raise RecipeError(f"{name} has no option {option}: {_advice(option, known, f'{PROGRAM} {name}')}")


def _advice(word: str, known: Iterable[str], command: str) -> str:
    """Names the word that was probably meant, or else the help that lists all."""
    meant = closest(word, known, cutoff=0.65)
    return f"did you mean {meant}?" if meant else f"`{command} --help` lists them."


def _in_a_sentence(box: str, name: str) -> str:
    """Returns tyro's boxed message in one line, without the help that it repeats."""
    lines = [line.strip("│").rstrip(" ─-") for line in box.splitlines()[1:]]
    said = list(itertools.takewhile(bool, itertools.dropwhile(operator.not_, lines)))
    text = " ".join(" ".join(said).split())
    advice = f"`{PROGRAM} {name} --help` shows what it takes"
    if text.startswith("Missing from"):
        indent = len(said[0]) - len(said[0].lstrip()) + 4
        missing = [line.strip() for line in said if len(line) - len(line.lstrip()) == indent]
        return f"{name} needs {' and '.join(missing)}: {advice}"
    if wrong := re.match(r"Error parsing (\S+): .*\b(int|INT|float|FLOAT)\b.*'(.*)'", text):
        kind = "a whole number" if wrong[2].lower() == "int" else "a number"
        return f"{wrong[1]} takes {kind}, not {wrong[3]!r}: {advice}"
    return f"{text.rstrip('.')}: {advice}"


class _Help(io.StringIO):
    """The help of a command as tyro prints it, with the colours and boxes that standard output can show."""

    def __init__(self) -> None:
        super().__init__()
        self.output = sys.stdout

    encoding = property(lambda self: getattr(self.output, "encoding", None))

    def isatty(self) -> bool:
        return self.output is not None and self.output.isatty()

    def wrapped(self) -> str:
        """Returns the text with its paragraphs wrapped at the terminal's width; tyro wraps only its boxes."""
        wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_on_hyphens=False)
        lines = self.getvalue().rstrip().splitlines()
        # A command in backticks stays on one line.
        whole = [re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\xa0"), line) for line in lines]
        filled = [wrapper.fill(line) if line[:1].isalnum() else line for line in whole]
        return "\n".join(filled).replace("\xa0", " ")


@contextlib.contextmanager
def _help_in_full() -> Iterator[None]:
    """Prints help once it is complete, and raises an error if it cannot be printed."""
    with named_in_errors("Standard output"):
        try:
            with contextlib.redirect_stdout(_Help()) as shown:
                yield
        except SystemExit as done:
            if not done.code:
                check_standard_output()
                print_result(shown.wrapped())
                _flush()
            raise


def quieten_libraries() -> None:
    """Keeps the libraries' messages off standard error; their own environment variables bring them back."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("DATASETS_VERBOSITY", "critical")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # It warns when it cannot write its cache.
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def _is_panic(error: BaseException) -> bool:
    """Tells whether a library written in Rust, such as tokenizers, has panicked: its error is no Exception."""
    return type(error).__name__ == "PanicException"


def error_message(error: BaseException) -> str:
    """Returns one line on what failed and what to do about it."""
    message = " ".join(str(error).split())
    if _is_panic(error):
        return f"The tokenizer failed on a text ({message}): a pattern in its tokenizer.json is too complex."
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("vanilla_transformer"):
        return f"The package {error.name} is not installed: run `pip install 'vanilla-transformer[train]'`."
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror.rstrip(".")
        return f"{error.filename}: {reason}." if error.filename else f"{reason}."
    if isinstance(error, OSError | ValueError):
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
    return f"{type(error).__name__}: {message} (this is a bug; --debug shows the traceback)"
