"""Links out of a folder to be sent: their targets are not meant to be sent."""

from collections.abc import Iterable
from pathlib import Path


def refuse_links_out(folder: Path, files: Iterable[Path]) -> None:
    """Refuse files of a folder that only link to a place outside it: whoever sends the folder does not mean those.

    A folder of the Hub's cache may link to the blobs of its own repository.

    Raises:
        OSError: A file is such a link; the message names the file and its target.
    """
    home = folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parents[1] / "blobs")
    for file in files:
        place = file.resolve()
        if not any(place.is_relative_to(one) for one in allowed):
            raise OSError(
                f"{file} is a link to {place}, outside of {folder}, and is not sent: put the file itself there, or "
                "remove the link."
            )
