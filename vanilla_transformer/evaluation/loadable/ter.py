"""`ter` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class Ter(LoadableMetric):
    """Translation edit rate as sacreBLEU counts it: lower is better."""

    metric = "ter"
