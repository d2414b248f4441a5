"""`wer` for `evaluate.load`."""

from vanilla_transformer.evaluation.loading import LoadableMetric


class Wer(LoadableMetric):
    """Share of items that equal none of their references, as counted for pronunciations: lower is better."""

    metric = "wer"
