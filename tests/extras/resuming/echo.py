"""A translator that shows by its translations which lines it was given together."""

from vanilla_transformer.translation import Hypothesis, Translation


class Echo:
    """Translates a line into itself and what stands with it in its chunk; lines of `x` alone are too long."""

    def translate(self, lines, progress=lambda count: None):
        progress(len(lines))
        return [
            Translation((Hypothesis(f"{line} of {len(lines)} from {lines[0]}", None, 1),), truncated=line == "x")
            for line in lines
        ]


def render(number, translation):
    """Two lines for each, as with several hypotheses."""
    return f"{number}: {translation.text}\n{number}: once more"
