"""Metrics by name; each score has a signature that says how it was computed."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, zip_longest
from typing import Any, NamedTuple

from vanilla_transformer import __version__
from vanilla_transformer.data.text_lines import words_of
from vanilla_transformer.errors import CorpusError, SettingError, check_texts, did_you_mean
from vanilla_transformer.evaluation.moses_tokenization import MosesTokenization

References = Sequence[Sequence[str]]
"""What is right for each prediction: at least one text."""


@dataclass(frozen=True)
class Score:
    """The value of a metric, in percent unless its name says otherwise, and its signature."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        left_out = "" if math.isfinite(self.value) else ", which a model card leaves out"
        return f"{self.name} = {self.value:.2f}  ({self.signature}){left_out}"


@dataclass(frozen=True)
class Metric:
    """A metric of a task.

    Attributes:
        by_default: Whether it is computed where no metrics are named.
        one_item_per_source: Whether lines with the same source are references of one item.
    """

    measure: Callable[[Sequence[Any], References], tuple[float, str]]
    by_default: bool = False
    one_item_per_source: bool = False


def signature(counted: str, items: int, **settings: object) -> str:
    """Says what was counted over how many items, and how, in the style of sacreBLEU."""
    how = "".join(f"{name}:{value}|" for name, value in settings.items())
    return f"count:{counted}|items:{items}|{how}version:{__version__}"


def _sacrebleu(metric: str, by_default: bool = False, **settings: Any) -> Metric:
    """The corpus score of one of sacreBLEU's metrics, with its default settings unless others are given."""

    def measure(predictions: Sequence[str], references: References) -> tuple[float, str]:
        from sacrebleu import metrics

        scorer = getattr(metrics, metric)(**settings)
        # sacreBLEU expects one stream of first references, one of second ones and so on, with None for missing ones.
        streams = [list(stream) for stream in zip_longest(*references)]
        value = scorer.corpus_score(list(predictions), streams).score
        return value, str(scorer.get_signature())

    return Metric(measure, by_default)


def _paper_bleu(language: str) -> Metric:
    """Section 6.1: BLEU as the paper's authors computed it, with their tokenization."""

    def measure(predictions: Sequence[str], references: References) -> tuple[float, str]:
        tokenize = MosesTokenization(language)
        value, how = _TOKENIZED_BLEU.measure(
            [tokenize(prediction) for prediction in predictions],
            [[tokenize(reference) for reference in accepted] for accepted in references],
        )
        return value, how.replace("tok:none", tokenize.signature)

    return Metric(measure)


def _word_error_rate(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Grapheme-to-phoneme word error rate: the share of items that match none of their references."""
    wrong = sum(
        words_of(prediction) not in map(words_of, accepted)
        for prediction, accepted in zip(predictions, references, strict=True)
    )
    return 100 * wrong / len(predictions), _signature_of_error_rate("items-that-equal-no-reference", references)


def _phoneme_error_rate(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Grapheme-to-phoneme phoneme error rate: edits to the nearest reference divided by its length."""
    from rapidfuzz.distance import Levenshtein

    edits = length = 0
    for prediction, accepted in zip(predictions, references, strict=True):
        tokens = words_of(prediction)
        # Ties go to the longest reference.
        nearest = min((Levenshtein.distance(tokens, one), -len(one)) for one in map(words_of, accepted))
        edits, length = edits + nearest[0], length - nearest[1]
    if not length:
        raise CorpusError("per cannot be computed: all references are empty.")
    return 100 * edits / length, _signature_of_error_rate("edits-per-token-of-nearest-reference", references)


def _signature_of_error_rate(counted: str, references: References) -> str:
    fewest, most = min(map(len, references)), max(map(len, references))
    return signature(counted, len(references), nrefs=most if most == fewest else f"1-{most}", tok="space")


def _accuracy(predictions: Sequence[str], references: References) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    value = 100 * accuracy_score([reference for reference, *_ in references], list(predictions))
    return value, signature("right-labels", len(references), **_version("scikit-learn"))


def _macro_f1(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Averages the F1 of each label that is given or predicted."""
    from sklearn.metrics import f1_score

    gold = [reference for reference, *_ in references]
    value = 100 * f1_score(gold, list(predictions), average="macro", zero_division=0)
    how = {"labels": len({*gold, *predictions}), "zero_division": 0, **_version("scikit-learn")}
    return value, signature("mean-f1-of-labels", len(references), **how)


def _token_accuracy(predictions: Sequence[str], references: References) -> tuple[float, str]:
    from sklearn.metrics import accuracy_score

    gold, found = ([tag for tags in side for tag in tags] for side in _tags(predictions, references))
    value = 100 * accuracy_score(gold, found)
    return value, signature("right-tags", len(references), words=len(gold), **_version("scikit-learn"))


def _spans(predictions: Sequence[str], references: References) -> tuple[float, str]:
    """Computes F1 of whole spans over all sentences, as conlleval counts them."""
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold, found = _tags(predictions, references)
    recall, precision = (100 * measure(gold, found, zero_division=0) for measure in (recall_score, precision_score))
    how = {"recall": f"{recall:.2f}", "precision": f"{precision:.2f}", "average": "micro", "mode": "conlleval"}
    value = 100 * f1_score(gold, found, zero_division=0)
    return float(value), signature("f1-of-spans", len(references), **how, **_version("seqeval"))


def _tags(predictions: Sequence[str], references: References) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the tags of each sentence: those given, and those predicted."""
    return [words_of(reference) for reference, *_ in references], [*map(words_of, predictions)]


def _version(library: str) -> dict[str, str]:
    return {library: version(library)}


class TextCost(NamedTuple):
    """The cost of a text: the sum over its tokens of their negative log-probabilities.

    `context` is the maximum number of tokens that the model saw at once: a longer text is scored in blocks of that
    size. `ends` tells whether the end of the text is one of its tokens.
    """

    nats: float = 0.0
    tokens: int = 0
    context: int = 0
    ends: bool = True

    def __str__(self) -> str:
        """Returns the line of `predict` and `evaluate --output`: log-probability in nats, and number of tokens."""
        return f"{-self.nats:.4f}\t{self.tokens}" if self.tokens else ""


def _per(unit: str, size: Callable[[str], int] | None, by_default: bool = True) -> Metric:
    """Perplexity per token, or bits per unit counted by `size`."""

    def measure(costs: Sequence[TextCost], references: References) -> tuple[float, str]:
        nats, tokens = math.fsum(cost.nats for cost in costs), sum(cost.tokens for cost in costs)
        # A text of only white space is left out, as in training.
        texts = [text for (text, *_), cost in zip(references, costs, strict=True) if cost.tokens]
        count = tokens if size is None else sum(map(size, texts))
        if not count:
            raise CorpusError("A language model cannot be scored on texts that are all empty.")
        try:
            value = math.exp(nats / count) if size is None else nats / math.log(2) / count
        except OverflowError:
            value = math.inf
        scored = max(costs, key=lambda cost: cost.context)
        how = {f"{unit}s": count, "context": scored.context}
        counted = f"perplexity-of-{unit}" if size is None else f"bits-per-{unit}"
        return value, signature(counted, len(texts), **how, ends="counted" if scored.ends else "none")

    return Metric(measure, by_default)


# As multi-bleu.perl: words are separated by spaces, and a zero n-gram precision makes the score zero.
_TOKENIZED_BLEU = _sacrebleu("BLEU", tokenize="none", smooth_method="none", force=True)
METRICS = {
    "sacrebleu": _sacrebleu("BLEU", by_default=True),
    "chrf": _sacrebleu("CHRF", by_default=True),
    "ter": _sacrebleu("TER"),
    "tokenized_bleu": _TOKENIZED_BLEU,
    "paper_bleu": _paper_bleu("de"),
    **{f"paper_bleu:{language}": _paper_bleu(language) for language in ("de", "fr")},
    "wer": Metric(_word_error_rate, one_item_per_source=True),
    "per": Metric(_phoneme_error_rate, one_item_per_source=True),
}
# How sacreBLEU splits languages written without spaces, for which its 13a takes a sentence for a word.
_SPLIT = dict.fromkeys(["zh", "zho", "cmn"], "zh") | dict.fromkeys(["ja", "jpn", "th", "lo", "km", "my"], "char")
LABEL_METRICS = {"accuracy": Metric(_accuracy, by_default=True), "macro_f1": Metric(_macro_f1, by_default=True)}
TAG_METRICS = {"token_accuracy": Metric(_token_accuracy, by_default=True), "seqeval": Metric(_spans)}
LANGUAGE_MODEL_METRICS = {
    "perplexity": _per("token", None),
    "bits_per_character": _per("character", len),
    "bits_per_byte": _per("byte", lambda text: len(text.encode()), by_default=False),
}
# The masked tokens depend on the text alone.
MASKED_METRICS = {"masked_perplexity": _per("masked-token", None)}


def metrics_for(language: str | None) -> Mapping[str, Metric]:
    """Returns `METRICS` for a target language such as zh_CN: BLEU splits its text as the language asks for."""
    tokenize = _SPLIT.get(re.split("[-_]", language or "")[0])
    return METRICS | ({"sacrebleu": _sacrebleu("BLEU", tokenize=tokenize)} if tokenize else {})


def check_names(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> None:
    """Raises SettingError for an unknown metric, by default one of text, before hours of decoding."""
    check_texts("metrics", names)
    for name in names:
        if name not in metrics:
            hint = did_you_mean(name, metrics) or "."
            raise SettingError(f"There is no metric {name!r}{hint} There are {', '.join(metrics)}.")


def score(
    names: Iterable[str],
    predictions: Iterable[object],
    references: Iterable[Iterable[str]],
    metrics: Mapping[str, Metric] = METRICS,
) -> list[Score]:
    """Scores predictions against their references, at least one each, with every metric in `names`."""
    names = [*names] if not isinstance(names, str) else names
    check_names(names, metrics)
    check_texts("predictions", predictions)
    answers, several = [*predictions], []
    for accepted in references:
        check_texts("the references of each prediction", accepted)
        several.append([*accepted])
    if len(answers) != len(several):
        raise CorpusError(f"{len(answers):,} predictions cannot be scored against {len(several):,} references.")
    if not answers or not all(several):
        raise CorpusError("Scoring needs at least one prediction, and at least one reference for each.")
    if any(one is None for one in chain(answers, *several)):
        raise CorpusError("None cannot be scored: give an empty text where a prediction or a reference is missing.")
    return [Score(name, *metrics[name].measure(answers, several)) for name in names]
