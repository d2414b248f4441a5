"""The time of a run with `max_minutes`: when its last step is to end, and the number of steps until then."""

import math
import time
from dataclasses import dataclass

# Share of a run's minutes that its last evaluation and checkpoint, the mean, the scores and the card may take; and of
# the time before them that is left to steps, beside evaluations and checkpoints.
SHARE_OF_THE_END, SHARE_OF_STEPS = 0.07, 0.85
# Settings that follow from the number of steps.
SCHEDULE = ("max_steps", "warmup_steps", "learning_rate_scale", "eval_steps", "save_steps")


@dataclass(frozen=True)
class TimeBudget:
    """The minutes of a run, None if it may take any time.

    Attributes:
        begun: When the command began, on the clock of `time.perf_counter`.
        called: When the libraries were loaded and the run itself began.
        earlier: Seconds used up before an interruption.
    """

    minutes: float | None
    begun: float
    called: float
    earlier: float = 0.0

    @property
    def deadline(self) -> float:
        """When the run has to be over."""
        # A command's end, with its picture and what Python takes down, lasts about as long as its imports did.
        return self.begun + 60 * (self.minutes or math.inf) - (self.called - self.begun) - self.earlier

    @property
    def last_step_by(self) -> float:
        """When the last step is to end, which leaves time for the mean, the scores and the card."""
        return self.deadline - 60 * (self.minutes or 0) * SHARE_OF_THE_END

    def is_over(self) -> bool:
        """Tells whether the step that is done is the last."""
        return time.perf_counter() >= self.last_step_by

    def steps(self, seconds_per_step: float) -> int:
        """Returns the number of steps that fit."""
        return max(1, int((self.last_step_by - time.perf_counter()) * SHARE_OF_STEPS / seconds_per_step))
