"""Decodes a corpus and scores the translations against its targets."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.evaluation.metrics import METRICS, MetricError, Score, check_names, score
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.translation import LineTranslator, Translation
from vanilla_transformer.translation.lines import Translator

if TYPE_CHECKING:
    from datasets import Dataset

Item = TypeVar("Item")
Result = TypeVar("Result")
# Chunks per process, so that they all end at about the same time.
_CHUNKS_EACH = 4


class Processes(Protocol):
    """Processes that evaluate one corpus, each with its rank."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all on the main process, which has rank 0, and none on the others."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a corpus; sources, predictions and references are aligned, one per line of the corpus.

    `decoded` counts the distinct sources, `tokens` the target tokens generated for them in `seconds`.
    """

    scores: list[Score]
    sources: list[str]
    predictions: list[str]
    references: list[str]
    decoded: int
    truncated: int
    seconds: float
    tokens: int

    def as_json(self) -> dict[str, Any]:
        """Returns the figures shown beside the scores."""
        return {
            "pairs": len(self.sources),
            "distinct_sources": self.decoded,
            "truncated_sources": self.truncated,
            "seconds": self.seconds,
            "sentences_per_second": self.sentences_per_second,
            "target_tokens_per_second": self.tokens_per_second,
        }

    def in_words(self) -> list[str]:
        """Returns the same figures in sentences."""
        speed = f"{self.sentences_per_second:,.1f} sentences/s, {self.tokens_per_second:,.0f} target tokens/s"
        cut = f"{self.truncated:,} sources were too long for the model and were truncated"
        return [f"{self.decoded:,} sources in {self.seconds:.1f} s: {speed}", *([cut] if self.truncated else [])]

    @property
    def sentences_per_second(self) -> float:
        """Distinct sources decoded per second."""
        return self.decoded / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Target tokens generated per second."""
        return self.tokens / self.seconds


def evaluate_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: "Dataset",
    metrics: Sequence[str],
    *,
    batch_tokens: int | None = None,
    progress: Callable[[int], object] = lambda count: None,
    processes: Processes | None = None,
    rescored: Callable[[LineTranslator], Translator] = lambda translator: translator,
    **generate_kwargs: Any,
) -> Evaluation:
    """Translates each distinct `source` of the corpus once and scores the translations against the `target`s.

    BLEU, chrF and TER count every line of the corpus. For word and phoneme error rates, lines with the same source
    are one item with several references. If the tokenizer expects text segmented into sub-words, references are
    detokenized like the translations.

    Args:
        metrics: Names from `METRICS`.
        batch_tokens: Source tokens in a batch, padding included.
        progress: Called after each batch with the number of distinct sources done since the last call.
        processes: This process, the main one, and those that call `evaluate_worker`.
        rescored: Wraps the translator in one that chooses among several of its translations.
        generate_kwargs: For `model.generate`; its own settings apply otherwise.
    """
    check_names(metrics)
    sources, references = list(corpus["source"]), _detokenized(tokenizer, corpus["target"])
    if not sources:
        raise MetricError("The corpus to evaluate on is empty.")
    distinct = list(dict.fromkeys(sources))
    translator = rescored(LineTranslator.from_model(model, tokenizer, batch_tokens=batch_tokens, **generate_kwargs))
    start = time.perf_counter()
    translations = translate_distributed(translator, distinct, processes, progress)
    seconds = time.perf_counter() - start
    translated = {source: translation.text for source, translation in zip(distinct, translations, strict=True)}
    return Evaluation(
        scores=score_translations(metrics, translated, sources, references),
        sources=sources,
        predictions=[translated[source] for source in sources],
        references=references,
        decoded=len(distinct),
        truncated=sum(translation.truncated for translation in translations),
        seconds=seconds,
        tokens=sum(translation.hypotheses[0].tokens for translation in translations),
    )


def evaluate_worker(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: "Dataset",
    processes: Processes,
    *,
    batch_tokens: int | None = None,
    rescored: Callable[[LineTranslator], Translator] = lambda translator: translator,
    **generate_kwargs: Any,
) -> None:
    """Translates a part of the corpus for the main process, which calls `evaluate_model` with the same arguments."""
    translator = rescored(LineTranslator.from_model(model, tokenizer, batch_tokens=batch_tokens, **generate_kwargs))
    translate_distributed(translator, list(dict.fromkeys(corpus["source"])), processes)


def translate_distributed(
    translator: Translator,
    lines: Sequence[str],
    processes: Processes | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> list[Translation]:
    """Returns all translations on the main process, none elsewhere; each process translates every n-th chunk.

    Args:
        lines: The same in all processes.
        progress: Called with the number of lines that this process has done since the last call.
    """
    return in_shares(translator.translate, lines, translator.chunk_lines, processes, progress)


def in_shares(
    work: Callable[[list[Item], Callable[[int], object]], Sequence[Result]],
    items: Sequence[Item],
    length: int,
    processes: Processes | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> list[Result]:
    """Returns the results of `work` for all items on the main process; each process does every n-th chunk.

    Args:
        work: Returns a result for each item of a chunk.
        items: The same in all processes.
        length: Maximum length of a chunk.
        progress: Called with the number of items that this process has done since the last call.
    """
    rank, size = (0, 1) if processes is None else (processes.rank, processes.size)
    if size > 1:
        length = max(1, min(length, math.ceil(len(items) / (_CHUNKS_EACH * size))))
    starts = range(0, len(items), length)
    mine = [work(list(items[start : start + length]), progress) for start in starts[rank::size]]
    everyone = [mine] if processes is None else processes.gather(mine)
    return [one for number in range(len(starts) if everyone else 0) for one in everyone[number % size][number // size]]


def _detokenized(tokenizer: PreTrainedTokenizerBase, references: Iterable[str]) -> list[str]:
    if isinstance(tokenizer, VanillaTransformerTokenizer):
        return [tokenizer.detokenize(reference) for reference in references]
    return list(references)


def score_translations(
    metrics: Sequence[str], translated: dict[str, str], sources: Sequence[str], references: Sequence[str]
) -> list[Score]:
    """Scores the translation of each source, over lines or over distinct sources depending on the metric."""
    accepted: dict[str, list[str]] = {}
    for source, reference in zip(sources, references, strict=True):
        accepted.setdefault(source, []).append(reference)
    by_line = [translated[source] for source in sources], [[reference] for reference in references]
    by_source = [translated[source] for source in accepted], list(accepted.values())
    return [
        result
        for name in metrics
        for result in score([name], *(by_source if METRICS[name].one_item_per_source else by_line))
    ]
