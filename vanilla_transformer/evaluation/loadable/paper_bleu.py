"""`paper_bleu` for `evaluate.load`."""

from vanilla_transformer.evaluation.loadable.loadable_metric import LoadableMetric


class PaperBleu(LoadableMetric):
    """BLEU of raw text as the paper's authors computed it with get_ende_bleu.

    Moses tokenization, straight quotes, compounds split at hyphens. The configuration is the language of the text,
    German by default.
    """

    metric = "paper_bleu"
