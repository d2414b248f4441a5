"""A check of the files that pictures are written to."""

from pathlib import Path

from vanilla_transformer.cli.arguments import UsageError

_PICTURES = ".png", ".svg", ".pdf"


def check_picture(path: Path) -> None:
    """Raises UsageError if the file's suffix is not that of a picture."""
    if path.suffix.lower() not in _PICTURES:
        raise UsageError(f"{path} must end with {', '.join(_PICTURES)}.")
