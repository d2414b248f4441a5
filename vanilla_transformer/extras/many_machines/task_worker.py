"""A worker for a command with `--tasks`: reads the command from its first line, then task numbers."""

import os
import sys

from vanilla_transformer.distributed.torchrun import end_with_parent


def main(parent: int) -> None:
    """Runs tasks until there are no more, or until the parent process is gone."""
    end_with_parent()
    if os.getppid() != parent:
        return
    from vanilla_transformer.cli.program import error_message, quieten_libraries
    from vanilla_transformer.extras.many_machines.task_options import from_line
    from vanilla_transformer.extras.many_machines.workers import answer_numbers

    quieten_libraries()
    answer_numbers(lambda line: from_line(line).task_runner(), error_message)


if __name__ == "__main__":
    main(int(sys.argv[1]))
