"""`ter` for `evaluate.load`."""

from vanilla_transformer.evaluation.loading import LoadableMetric


class Ter(LoadableMetric):
    """Translation edit rate as sacreBLEU counts it: lower is better."""

    metric = "ter"
