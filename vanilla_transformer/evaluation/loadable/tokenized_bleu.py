"""`tokenized_bleu` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class TokenizedBleu(LoadableMetric):
    """BLEU of text that is already tokenized; no smoothing, as in multi-bleu.perl."""

    metric = "tokenized_bleu"
