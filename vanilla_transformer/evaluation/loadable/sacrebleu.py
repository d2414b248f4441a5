"""`sacrebleu` for `evaluate.load`."""

from vanilla_transformer.evaluation.loading import LoadableMetric


class Sacrebleu(LoadableMetric):
    """BLEU of detokenized text with sacreBLEU's default settings."""

    metric = "sacrebleu"
