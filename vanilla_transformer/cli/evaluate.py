"""`vanilla-transformer evaluate`: score a model on a corpus."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from vanilla_transformer.cli.arguments import Flag, Model, OptionalPath, OptionalText, UsageError
from vanilla_transformer.cli.streams import (
    check_output,
    check_standard_output,
    print_result,
    refuse_model_file,
    refuse_same_file,
    warn,
    write_whole,
)
from vanilla_transformer.cli.translate import Decoding
from vanilla_transformer.data.lines import CorpusError
from vanilla_transformer.data.locations import locate
from vanilla_transformer.data.sources import CorpusSpec, parse_corpus
from vanilla_transformer.progress import progress_bar
from vanilla_transformer.recipe.schema import Recipe, load_recipe

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vanilla_transformer.distributed.peers import Peers
    from vanilla_transformer.evaluation import Evaluation

# Seconds without a sign of life until one of several processes is taken for dead.
LONGEST_SILENCE = 120.0


@dataclass(frozen=True)
class Evaluate:
    """Score a model on a corpus: each metric with its value and its signature."""

    model: Model
    """Model directory or Hub id."""
    data: tuple[str, ...]
    """Two line-aligned files, one table (TSV, CSV, JSONL, Parquet), trees (.mrg), a Hub id, or the built-in corpus
    cmudict:test, optionally followed by source_column=, target_column= and streaming=true as in `train`."""
    metrics: Annotated[tuple[str, ...], arg(help_behavior_hint="")] = ()
    """sacrebleu, chrf, ter, tokenized_bleu, paper_bleu (German; paper_bleu:fr for French, etc.), wer, per,
    bracketing (default: the metrics of the model's recipe, otherwise sacrebleu and chrf)."""
    source_column: OptionalText = None
    """Source column, or language of a `translation` column (default: as given in --data, or the first)."""
    target_column: OptionalText = None
    """Reference column, or language of a `translation` column (default: as given in --data, or the second)."""
    output: OptionalPath = None
    """Write the translations to this file, one line for each pair of the corpus."""
    card: Flag = False
    """Add the scores to the model card, README.md in the model directory."""
    json: Flag = False
    """Print the result as one JSON object."""
    progress: Flag = False
    """Show progress on standard error even if it is not a terminal, as occasional log lines."""
    decoding: Decoding = Decoding(precision="float32")  # Scores are compared across machines.

    def run(self) -> None:
        """Translates the corpus, with the processes that a launcher started together, and prints the scores."""
        from vanilla_transformer.distributed.peers import meet

        with meet(LONGEST_SILENCE) as processes:
            metrics = processes.broadcast_from_main(self._check)
            corpus, model, tokenizer = self._prepare()
            processes.check_same(
                self._facts(corpus, model),
                "{process} sees another {name} than the main process ({theirs}, and there {ours}): give all the same "
                "command and files.",
            )
            if processes.is_main:
                self._evaluate(corpus, model, tokenizer, metrics, processes)
            else:
                from vanilla_transformer.evaluation.scoring import evaluate_worker

                evaluate_worker(model, tokenizer, corpus, processes, **self.decoding.arguments())

    def _check(self) -> tuple[str, ...]:
        """Finds what is wrong before a model is loaded, on the main process for all; the metrics to score by."""
        from vanilla_transformer.evaluation import check_names

        if self.card:
            if not Path(self.model).is_dir():
                raise UsageError(f"--card requires a local model directory, which {self.model} is not.")
            from vanilla_transformer.reporting.model_card import check_card

            check_card(Path(self.model))
        metrics = self.metrics or _metrics_of(self.model)
        check_names(metrics)
        self.decoding.arguments()
        self._check_paths()
        return metrics

    def _evaluate(
        self,
        corpus: "Dataset",
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        metrics: tuple[str, ...],
        processes: "Peers",
    ) -> None:
        """Does what the main process does: it alone scores, writes and shows anything."""
        from vanilla_transformer.evaluation import evaluate_model

        if len(corpus) and list(corpus["source"]) == list(corpus["target"]):
            warn("source and target of the corpus are identical, so the scores only measure copying.")
        distinct = len(set(corpus["source"]))
        self.decoding.announce(model)
        with progress_bar(self.progress, "sources", total=math.ceil(distinct / processes.size)) as bar:
            evaluation = evaluate_model(
                model,
                tokenizer,
                corpus,
                metrics,
                progress=bar.update,
                processes=processes,
                **self.decoding.arguments(),
            )
        print_result(json.dumps(self._as_json(evaluation, model)) if self.json else _as_text(evaluation))
        if self.output is not None:
            write_whole(self.output, evaluation.predictions)
        if self.card:
            from vanilla_transformer.reporting.model_card import add_scores

            add_scores(Path(self.model), self._source(), evaluation.scores, self.decoding.settings(model))

    def _prepare(self) -> "tuple[Dataset, PreTrainedModel, PreTrainedTokenizerBase]":
        return self._corpus(), *self.decoding.load(self.model)

    def _facts(self, corpus: "Dataset", model: "PreTrainedModel") -> dict[str, Any]:
        """What has to be the same in all processes."""
        from vanilla_transformer.fingerprints import fingerprint_lines
        from vanilla_transformer.translation import fingerprint

        return {
            "model": fingerprint(self.model, model),
            "corpus": fingerprint_lines(corpus["source"]),
            **self.decoding.arguments(),
            "precision": self.decoding.taken(model),
        }

    def _check_paths(self) -> None:
        """Refuses an output that cannot be written or would overwrite an input, before hours of decoding."""
        for part in map(Path, locate(self._source()).paths):
            refuse_same_file(part, self.output)
            if self.output is not None and part.is_dir() and part.resolve() in self.output.resolve().parents:
                raise UsageError(f"{self.output} is inside the corpus directory {part}: choose another file.")
        refuse_model_file(self.model, self.output)
        check_standard_output()
        check_output(self.output)

    def _corpus(self) -> "Dataset":
        from vanilla_transformer.data.corpus import read_corpus

        return read_corpus(self._source())

    def _source(self) -> CorpusSpec:
        """The corpus given by --data, with the columns given by the options."""
        try:
            source = parse_corpus(self.data)
        except CorpusError as error:
            raise UsageError(f"--data: {error}") from error
        return dataclasses.replace(
            source,
            source_column=self.source_column or source.source_column,
            target_column=self.target_column or source.target_column,
        )

    def _as_json(self, evaluation: "Evaluation", model: "PreTrainedModel") -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "settings": self.decoding.settings(model),
            "scores": [dataclasses.asdict(score) for score in evaluation.scores],
            "pairs": len(evaluation.sources),
            "distinct_sources": evaluation.decoded,
            "truncated_sources": evaluation.truncated,
            "seconds": evaluation.seconds,
            "sentences_per_second": evaluation.sentences_per_second,
            "target_tokens_per_second": evaluation.tokens_per_second,
        }


def _metrics_of(model: str) -> tuple[str, ...]:
    recipe = Path(model) / "recipe.yaml"
    from vanilla_transformer.tasks import get_task

    metrics = load_recipe(recipe).metrics if recipe.is_file() else None
    return get_task(Recipe().task).metrics if metrics is None else metrics


def _as_text(evaluation: "Evaluation") -> str:
    lines = [str(score) for score in evaluation.scores]
    lines.append(
        f"{evaluation.decoded:,} sources in {evaluation.seconds:.1f} s: "
        f"{evaluation.sentences_per_second:,.1f} sentences/s, {evaluation.tokens_per_second:,.0f} target tokens/s"
    )
    if evaluation.truncated:
        lines.append(f"{evaluation.truncated:,} sources were too long for the model and were truncated")
    return "\n".join(lines)
