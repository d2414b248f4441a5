"""Finds the files of a model in a directory or on the Hub, and reports files that cannot be read."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError

from vanilla_transformer.errors import ModelError
from vanilla_transformer.model_directory import CHECKPOINTS, RECIPE


def directory_of(name: str | Path, needed: str, *others: str) -> Path:
    """Returns the model directory of this name, or else the downloaded directory of the Hub model of this name.

    If the Hub does not answer, the cached files are used.

    Args:
        needed: A file that the directory must contain.
        others: Patterns of other files to download.
    """
    directory = Path(name).expanduser()
    if not directory.is_dir():
        return from_hub(str(name), (needed, *others))
    if not (directory / needed).is_file():
        if (directory / RECIPE).is_file() and (directory / CHECKPOINTS).is_dir():
            raise ModelError(
                f"{name} is an unfinished run. `vanilla-transformer train {directory / RECIPE}` resumes it; with "
                "--finish, this command averages the last checkpoints instead."
            )
        raise ModelError(f"{name} is not a model directory: it has no {needed}.")
    return directory


def from_hub(name: str, patterns: Sequence[str]) -> Path:
    """Downloads a model from the Hub and returns its directory.

    Args:
        name: ORG/NAME or ORG/NAME@REVISION.
        patterns: Patterns of the files to download.
    """
    repository, _, revision = name.partition("@")
    owner, _, _ = repository.partition("/")
    # The name is not valid on the Hub, or it looks like a local path.
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository) or owner.strip(".") == "":
        raise ModelError(f"There is no model directory {name}.")
    if Path(owner).is_dir():
        raise ModelError(f"There is no model directory {name}. The directory {owner} hides a model on the Hub.")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=[*patterns]))
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no directory {name}, and the Hub has no model with this name.") from error
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(f"There is no directory {name}, and the download from the Hub failed: {reason}.") from error


@contextmanager
def readable(path: str | Path, blame: str = "") -> Iterator[None]:
    """Converts errors of the body to a ModelError in one line; `blame` names the file or part with the error."""
    try:
        yield
    except (ImportError, ModelError):
        raise
    except BaseException as error:  # For damaged files, the libraries may raise any class.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = _reason(Path(path), error)
        if blame and not reason.startswith(blame):
            reason = f"{blame}: {reason}"
        raise ModelError(f"{path} cannot be loaded: it is damaged or not a model: {reason}.") from error


def _reason(path: Path, error: BaseException) -> str:
    """Returns the reason in one line, without the advice of torch to run unknown code."""
    if "weights_only" in str(error):
        pickles = [file.name for file in sorted(path.glob("*.bin"))]
        return (
            f"{', '.join(pickles) or 'its weight file'} is a pickle file that contains more than weights and could "
            "run any code, so ask for the model in the safetensors format"
        )
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
