"""Parses the command line, runs the command, and turns errors into one sentence."""

import contextlib
import functools
import io
import logging
import operator
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from vanilla_transformer import __version__
from vanilla_transformer.cli.arguments import UsageError
from vanilla_transformer.cli.average import Average
from vanilla_transformer.cli.evaluate import Evaluate
from vanilla_transformer.cli.generate import Generate
from vanilla_transformer.cli.info import Info
from vanilla_transformer.cli.join import Join
from vanilla_transformer.cli.predict import Predict
from vanilla_transformer.cli.prepare import Prepare
from vanilla_transformer.cli.push import Push
from vanilla_transformer.cli.streams import check_standard_output, named_in_errors, occupy_closed_streams, print_result
from vanilla_transformer.cli.tokenizer import TokenizerDecode, TokenizerEncode, TokenizerTrain
from vanilla_transformer.cli.train import Train
from vanilla_transformer.cli.translate import Translate
from vanilla_transformer.cores import prepare_threads
from vanilla_transformer.recipe.schema import RecipeError
from vanilla_transformer.seams import load_commands

# torch, transformers and datasets take seconds to load: a command imports them only when it runs, so that help and
# usage errors are instant.

PROGRAM = "vanilla-transformer"
DESCRIPTION = """The Transformer of "Attention Is All You Need", from raw text to translations.

--version prints the version; --debug, anywhere, shows the traceback of an error."""
COMMANDS: dict[str, type] = {
    "train": Train,
    "prepare": Prepare,
    "translate": Translate,
    "join": Join,
    "generate": Generate,
    "predict": Predict,
    "evaluate": Evaluate,
    "info": Info,
    "average": Average,
    "push": Push,
    **load_commands(),
}
TOKENIZER_COMMANDS = {"train": TokenizerTrain, "encode": TokenizerEncode, "decode": TokenizerDecode}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command in `argv` and returns the exit code: 1 for an error, 2 for a usage error."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    occupy_closed_streams()
    prepare_threads()
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
        return 2 if isinstance(error, UsageError | RecipeError) else 1


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Flushes what can still be written; what cannot must not fail a second time at exit."""
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
    """The command with its options."""
    by_recipe: dict[str, Any] = {"train": Train, "prepare": Prepare}
    defaults = {name: kind.from_words(words[1:] if words[:1] == [name] else []) for name, kind in by_recipe.items()}
    tokenizer: Any = Annotated[
        _choice(TOKENIZER_COMMANDS, words[1:2]),
        subcommand("tokenizer", description="Train a sub-word tokenizer, or apply one to text."),
    ]
    with _help_in_full():
        command = tyro.cli(
            _choice(COMMANDS, words[:1], defaults=defaults) | tokenizer,
            prog=PROGRAM,
            description=DESCRIPTION,
            args=words,
            config=(OmitArgPrefixes, OmitSubcommandPrefixes),
        )
    for name, kind in by_recipe.items():
        if isinstance(command, kind) and command.name != defaults[name].name:
            raise UsageError(f"The recipe must come before all options: `{name} {command.name} --option value ...`.")
    return command


@contextlib.contextmanager
def _help_in_full() -> Iterator[None]:
    """Help that could not be printed is an error; where standard output is closed, tyro gets another to look at."""
    with named_in_errors("Standard output"):
        try:
            with contextlib.redirect_stdout(sys.stdout or io.StringIO()):
                yield
        except SystemExit as done:
            if not done.code:
                check_standard_output()
                _flush()
            raise


def _choice(commands: dict[str, type], chosen: list[str], defaults: dict[str, Any] | None = None) -> Any:
    """The commands as a type for tyro; in a list of commands only the first sentence describes each."""
    options: list[Any] = []
    for name, command in commands.items():
        description = None if chosen == [name] else (command.__doc__ or "").partition("\n")[0]
        settings: dict[str, Any] = {"default": defaults[name]} if defaults and name in defaults else {}
        options.append(Annotated[command, subcommand(name, description=description, **settings)])
    return functools.reduce(operator.or_, options)


def quieten_libraries() -> None:
    """Keeps the libraries' messages off standard error; their own environment variables bring them back."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("DATASETS_VERBOSITY", "critical")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # It warns where it cannot write its cache.
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def _is_panic(error: BaseException) -> bool:
    """Tells whether a library written in Rust, as the tokenizers', has given up: what it raises is no Exception."""
    return type(error).__name__ == "PanicException"


def error_message(error: BaseException) -> str:
    """Says what failed and what to do about it, in one line."""
    message = " ".join(str(error).split())
    if _is_panic(error):
        return f"The tokenizer gives up on a text ({message}): its tokenizer.json has a pattern that asks too much."
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("vanilla_transformer"):
        return f"The package {error.name} is not installed: run `pip install 'vanilla-transformer[train]'`."
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror.rstrip(".")
        return f"{error.filename}: {reason}." if error.filename else f"{reason}."
    if isinstance(error, OSError | ValueError | RecipeError):
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
