"""`sacrebleu` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class Sacrebleu(LoadableMetric):
    """BLEU of detokenized text with sacreBLEU's default settings."""

    metric = "sacrebleu"
