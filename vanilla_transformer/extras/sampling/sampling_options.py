"""Options of `translate`, `generate` and the commands that write synthetic text: samples instead of a search."""

from dataclasses import asdict, dataclass
from typing import Any

from vanilla_transformer.cli.arguments import Flag, OptionalFloat, OptionalInt, UsageError, as_options
from vanilla_transformer.cli.decoding import Decoding
from vanilla_transformer.extras.sampling.samples import Sampling


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling: translations drawn from the model's probabilities."""

    sample: Flag = False
    """Draw each translation at random instead of searching for the best one, for example for synthetic text.
    The sample of a line depends on the line and --seed alone, not on its position, batch, task or interruptions;
    equal lines get equal samples.
    Only rounding, which varies with the batch, can occasionally change one."""
    top_k: OptionalInt = None
    """Draw from this many of the likeliest tokens (default: all)."""
    top_p: OptionalFloat = None
    """Draw from the likeliest tokens whose probabilities add up to this (default: 1, all)."""
    temperature: OptionalFloat = None
    """Divide the logits by this; below 1, likely tokens become likelier (default: 1)."""
    seed: OptionalInt = None
    """Random seed (default: 1)."""

    def check(self, decoding: Decoding) -> Sampling | None:
        """Returns the sampling for the translations, None for a search."""
        given = {name: value for name, value in vars(self).items() if name != "sample" and value is not None}
        if not self.sample:
            for name in given:
                raise UsageError(f"--{name.replace('_', '-')} is for --sample.")
            return None
        for name in ("num_beams", "length_penalty"):
            if getattr(decoding, name) is not None:
                raise UsageError(f"--sample cannot be combined with --{name.replace('_', '-')}, which is for beams.")
        with as_options():
            return Sampling(**given)

    def settings(self, decoding: Decoding) -> dict[str, Any]:
        """Returns the settings on which translations depend, by the names of the options."""
        sampling = self.check(decoding)
        return {} if sampling is None else {"sample": True, **asdict(sampling)}
