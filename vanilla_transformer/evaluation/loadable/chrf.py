"""`chrf` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class Chrf(LoadableMetric):
    """chrF2, the F-score of character n-grams, as sacreBLEU counts it."""

    metric = "chrf"
