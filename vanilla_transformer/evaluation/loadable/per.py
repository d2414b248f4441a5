"""`per` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class Per(LoadableMetric):
    """Phoneme error rate: edits to the nearest reference divided by its length; lower is better."""

    metric = "per"
