"""`bracketing` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable_metrics import LoadableMetric


class Bracketing(LoadableMetric):
    """Labelled bracketing F1 of trees that are written in a line, as `evalb` counts it: higher is better."""

    metric = "bracketing"
