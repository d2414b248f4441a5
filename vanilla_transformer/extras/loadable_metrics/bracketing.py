"""`bracketing` for `evaluate.load`."""

from vanilla_transformer.extras.loadable_metrics.loadable_metric import LoadableMetric


class Bracketing(LoadableMetric):
    """Labelled bracketing F1 of trees that are written in a line, as `evalb` counts it: higher is better."""

    metric = "bracketing"
