"""`tokenized_bleu` for `evaluate.load`."""

from vanilla_transformer.evaluation.loading import LoadableMetric


class TokenizedBleu(LoadableMetric):
    """BLEU of text that is split into words already, taken as it is; no smoothing, as multi-bleu.perl."""

    metric = "tokenized_bleu"
