"""The command `vanilla-transformer`."""

import os
import sys
import time
from collections.abc import Sequence

from vanilla_transformer.machine import BEGUN, OWN_LAUNCHER


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command in `argv` and returns the exit code: 1 for an error, 2 for a usage error, 130 for Ctrl-C."""
    # The minutes of a run count from here; the processes that it starts inherit the time.
    if os.environ.get("TORCHELASTIC_RUN_ID") != OWN_LAUNCHER:
        os.environ[BEGUN] = str(time.perf_counter())
    try:
        from vanilla_transformer.cli.program import main as run
    except KeyboardInterrupt:
        return 130
    except ImportError as error:  # What parses the command line is missing, or of another version.
        print(f"vanilla-transformer: error: {error}: `pip check` names packages that do not suit.", file=sys.stderr)
        return 1
    return run(list(sys.argv[1:] if argv is None else argv))
