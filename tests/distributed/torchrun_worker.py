"""`train` as torchrun starts it, with an accident at a step: `torchrun_worker.py RANK STEP SIGNAL train ...`."""

import os
import signal
import sys

from vanilla_transformer.cli import main
from vanilla_transformer.training import loop


def accident(rank: int, step: int, by: int) -> None:
    """Has the process of that rank send itself a signal before a step, once its checkpoint before is whole."""
    update = loop.TrainingLoop._update

    def acting_update(self, *arguments):
        if self.progress.step == step and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            self.accelerator.wait_for_everyone()
            if self.accelerator.process_index == rank:
                os.kill(os.getpid(), by)
        update(self, *arguments)

    loop.TrainingLoop._update = acting_update


if __name__ == "__main__":
    accident(int(sys.argv[1]), int(sys.argv[2]), signal.Signals[sys.argv[3]])
    sys.exit(main(sys.argv[4:]))
