"""Decodes a corpus and scores the translations against its targets."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from vanilla_transformer.errors import CorpusError
from vanilla_transformer.evaluation.metrics import METRICS, Score, check_names, metrics_for, score
from vanilla_transformer.translation import Translator
from vanilla_transformer.translation.minimum_bayes_risk import Utility, by_minimum_bayes_risk

if TYPE_CHECKING:
    from datasets import Dataset

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Processes:
    """The processes that predict the texts of a corpus together, each a part.

    Attributes:
        gather: Returns what each of them gives it, in order of rank; each waits for all.
    """

    rank: int = 0
    number: int = 1
    gather: Callable[[Any], list[Any]] = lambda one: [one]


ALONE = Processes()


@dataclass(frozen=True)
class EvaluationResult:
    """A model's results on a corpus.

    Attributes:
        predictions: A line for each row.
        references: What is right for each row.
        figures: What is shown beside the scores, by name.
    """

    scores: dict[str, Score]
    predictions: list[str]
    references: list[str]
    figures: dict[str, float]


def evaluate_translation(
    translator: Translator,
    corpus: "Dataset",
    metrics: Sequence[str],
    *,
    progress: Callable[[int], object] = lambda count: None,
    mbr: Utility | None = None,
    processes: Processes = ALONE,
) -> EvaluationResult:
    """Translates each distinct `source` of the corpus once and scores the translations against the `target`s.

    BLEU, chrF and TER count every line of the corpus. For word and phoneme error rates, lines with the same source
    are one item with several references. BLEU splits text as a target language that the
    corpus names asks for. If the tokenizer expects text segmented into sub-words, references are detokenized like the
    translations.

    Args:
        metrics: Names from `METRICS`.
        progress: Called after each batch with the number of distinct sources done since the last call.
        mbr: Utility by which one of several translations is chosen.
        processes: Those that translate together.
    """
    from vanilla_transformer.data.corpus import corpus_languages

    check_names(metrics)
    corpus = corpus.with_format(None)
    sources, references = list(corpus["source"]), list(map(translator.tokenizer.detokenize, corpus["target"]))
    if not sources:
        raise CorpusError("The corpus to evaluate on is empty.")
    distinct = list(dict.fromkeys(sources))
    start = time.perf_counter()
    translations = in_chunks(translator.translate, distinct, translator.chunk_lines, progress, processes)
    if mbr is not None:
        translations = [by_minimum_bayes_risk(translation, mbr) for translation in translations]
    seconds = time.perf_counter() - start
    translated = {source: translation.text for source, translation in zip(distinct, translations, strict=True)}
    tokens = sum(len(translation.hypotheses[0].ids) for translation in translations)
    return EvaluationResult(
        score_translations(metrics, translated, sources, references, language=corpus_languages(corpus)[1]),
        [translated[source] for source in sources],
        references,
        {
            "pairs": len(sources),
            "distinct_sources": len(distinct),
            "truncated_sources": sum(translation.truncated for translation in translations),
            "seconds": seconds,
            "sentences_per_second": len(distinct) / seconds,
            "target_tokens_per_second": tokens / seconds,
        },
    )


def in_chunks(
    work: Callable[[list[Item], Callable[[int], object]], Sequence[Result]],
    items: Sequence[Item],
    length: int,
    progress: Callable[[int], object],
    processes: Processes = ALONE,
) -> list[Result]:
    """Returns the results of `work`, one for each item, from chunks of at most `length` items of each process."""
    mine = items[processes.rank :: processes.number]
    chunks = (list(mine[start : start + length]) for start in range(0, len(mine), length))
    shares = processes.gather([result for chunk in chunks for result in work(chunk, progress)])
    return [shares[place % processes.number][place // processes.number] for place in range(len(items))]


def score_translations(
    metrics: Sequence[str],
    translated: dict[str, str],
    sources: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None = None,
) -> dict[str, Score]:
    """Scores the translation of each source, over lines or over distinct sources depending on the metric."""
    accepted: dict[str, list[str]] = {}
    for source, reference in zip(sources, references, strict=True):
        accepted.setdefault(source, []).append(reference)
    by_line = [translated[source] for source in sources], [[reference] for reference in references]
    by_source = [translated[source] for source in accepted], list(accepted.values())
    items = {name: by_source if METRICS[name].one_item_per_source else by_line for name in metrics}
    return {name: score([name], *items[name], metrics_for(language))[0] for name in metrics}
