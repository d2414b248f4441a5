"""The files of a model, in a directory or on the Hub, and one sentence where they cannot be read."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError

from vanilla_transformer.errors import ModelError
from vanilla_transformer.model_directory import CHECKPOINTS, RECIPE


def directory_of(name: str | Path, needed: str, *others: str) -> Path:
    """Returns the directory of that name, or else that of a model of the Hub: its cache, if the Hub does not answer.

    It must have the file `needed`; `others` are patterns of the files to download besides.
    """
    directory = Path(name).expanduser()
    if not directory.is_dir():
        return from_hub(str(name), (needed, *others))
    if not (directory / needed).is_file():
        if (directory / RECIPE).is_file() and (directory / CHECKPOINTS).is_dir():
            raise ModelError(
                f"{name} is an unfinished run: `vanilla-transformer train {directory / RECIPE}` goes on with "
                "it, and with --finish makes a model of what is there."
            )
        raise ModelError(f"{name} is not a model directory: it has no {needed}.")
    return directory


def from_hub(name: str, patterns: Sequence[str]) -> Path:
    """Returns the directory of a model of the Hub, ORG/NAME or ORG/NAME@REVISION, with its files of these patterns."""
    repository, _, revision = name.partition("@")
    owner, _, _ = repository.partition("/")
    # It cannot be on the Hub, or looks like a local path.
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository) or owner.strip(".") == "":
        raise ModelError(f"There is no model directory {name}.")
    if Path(owner).is_dir():
        raise ModelError(f"There is no model directory {name}; the directory {owner} here hides the owner on the Hub.")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=[*patterns]))
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no directory {name}, and the Hub has no model of that name.") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(f"There is no directory {name}, and the Hub gave no model of that name: {reason}.") from error


@contextmanager
def readable(path: str | Path, blame: str = "") -> Iterator[None]:
    """Reports in one sentence that the files of a model cannot be read; `blame` is the place of the mistake."""
    try:
        yield
    except (ImportError, ModelError):
        raise
    except BaseException as error:  # The libraries may raise any class for damaged files.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = _reason(Path(path), error)
        if blame and not reason.startswith(blame):
            reason = f"{blame}: {reason}"
        raise ModelError(f"{path} cannot be loaded: it is damaged or not a model: {reason}.") from error


def _reason(path: Path, error: BaseException) -> str:
    """Gives the reason in one line, without a library's advice to run unknown code."""
    if "weights_only" in str(error):
        pickles = [file.name for file in sorted(path.glob("*.bin"))]
        return (
            f"{', '.join(pickles) or 'its file of weights'} is a pickle with more than weights, which could "
            "run any code: ask for the model as safetensors"
        )
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
