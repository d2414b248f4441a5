"""`chrf` for `evaluate.load`."""

from vanilla_transformer.extras.loadable_metrics.loadable_metric import LoadableMetric


class Chrf(LoadableMetric):
    """chrF2, the F-score of character n-grams, as sacreBLEU counts it."""

    metric = "chrf"
