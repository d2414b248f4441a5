"""`paper_bleu` for `evaluate.load`."""

from vanilla_transformer.evaluation.loading import LoadableMetric


class PaperBleu(LoadableMetric):
    """BLEU of raw text as the paper's authors counted it with get_ende_bleu.

    The words are those of the Moses tokenizer, quotes are straight and compounds parted at their hyphens. Its
    configuration is the language of the text, German if there is none.
    """

    metric = "paper_bleu"
