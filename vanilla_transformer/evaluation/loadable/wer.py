"""`wer` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class Wer(LoadableMetric):
    """Word error rate of grapheme-to-phoneme conversion: share of items that match no reference; lower is better."""

    metric = "wer"
