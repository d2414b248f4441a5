"""`ter` for `evaluate.load`."""

from vanilla_transformer.extras.loadable_metrics.loadable_metric import LoadableMetric


class Ter(LoadableMetric):
    """Translation edit rate as sacreBLEU counts it: lower is better."""

    metric = "ter"
