"""`per` for `evaluate.load`."""

from vanilla_transformer.evaluation.loading import LoadableMetric


class Per(LoadableMetric):
    """Edits to the nearest reference over that reference's length, as counted for phonemes: lower is better."""

    metric = "per"
