"""`vanilla-transformer join`: joins the parts that numbered tasks have written."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import OptionalPath
from vanilla_transformer.cli.streams import check_output, check_standard_output, named_in_errors


@dataclass(frozen=True)
class Join:
    """Join the parts that `translate --tasks` wrote, in order; if any are missing, list their tasks.

    Each part is checked against the record of its task.
    """

    directory: Annotated[str, Positional, arg(metavar="DIR")]
    """Directory of the tasks, local or remote (any that fsspec supports, such as s3://bucket/directory)."""
    output: OptionalPath = None
    """File to write to (default: standard output)."""

    def run(self) -> None:
        """Writes the joined output; a file appears only when complete."""
        from vanilla_transformer.atomic_files import atomic_replace
        from vanilla_transformer.extras.many_machines.folder import TaskFolder
        from vanilla_transformer.extras.many_machines.numbered_translation import join_parts

        parts = join_parts(TaskFolder(self.directory))
        if self.output is None:
            check_standard_output()
            with named_in_errors("Standard output"):
                sys.stdout.buffer.writelines(parts)
            return
        check_output(self.output)
        with atomic_replace(Path(self.output)) as beside, open(beside, "wb") as file:
            file.writelines(parts)
