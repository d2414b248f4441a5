"""`tokenized_bleu` for `evaluate.load`."""

from vanilla_transformer.extras.loadable_metrics.loadable_metric import LoadableMetric


class TokenizedBleu(LoadableMetric):
    """BLEU of text that is already tokenized; no smoothing, as in multi-bleu.perl."""

    metric = "tokenized_bleu"
