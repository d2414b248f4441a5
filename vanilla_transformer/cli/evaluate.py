"""`vanilla-transformer evaluate`: score a model on a corpus."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, Model, OptionalPath
from vanilla_transformer.cli.decoding import Decoding, load_models
from vanilla_transformer.cli.minimum_bayes_risk_options import MinimumBayesRiskOptions
from vanilla_transformer.cli.streams import (
    check_output,
    check_standard_output,
    print_result,
    refuse_model_file,
    refuse_same_file,
    warn,
    write_whole,
)
from vanilla_transformer.data.columns import TextForm
from vanilla_transformer.data.sources import CorpusSpec, locate, only_corpus, parse_corpora, split_off
from vanilla_transformer.errors import CorpusError, RecipeError
from vanilla_transformer.options import OptionalCount
from vanilla_transformer.progress import progress_bar

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from vanilla_transformer.evaluation.scoring import Evaluation
    from vanilla_transformer.tasks import Task


@dataclass(frozen=True)
class Evaluate:
    """Score a model or an ensemble on a corpus: each metric with its value and its signature."""

    #: Model directory or Hub id.
    model: Model
    #: Two line-aligned files, one table (TSV, CSV, JSONL, Parquet), a Hub id or cmudict:test (built in);
    #: source_column=, target_column=, text_column= and so on may follow, as in `train`. For a classifier, a table of
    #: texts and labels; for a tagger, a file of CoNLL columns.
    data: Annotated[tuple[str, ...], arg(metavar="CORPUS ...")]
    #: Further models of the same vocabulary, which form an ensemble with the first one.
    models: Annotated[tuple[str, ...], Positional, arg(metavar="[MODEL ...]", help_behavior_hint="")] = ()
    #: Metrics (default: those of the model's recipe, or else of its task). Translation: sacrebleu, chrf, ter,
    #: tokenized_bleu, paper_bleu (German; paper_bleu:fr for French, etc.), wer, per. Classifiers: accuracy, macro_f1.
    #: Taggers: token_accuracy, seqeval. Language models: perplexity, bits_per_character, bits_per_byte.
    metrics: Annotated[tuple[str, ...], arg(metavar="METRIC ...", help_behavior_hint="")] = ()
    #: For a language model: number of new tokens in each further block of a long text. A smaller stride gives tokens
    #: more context but needs more blocks (default: a whole block, as in training).
    stride: OptionalCount = None
    #: Write the translations, labels or tags to this file, one line per row of the corpus. For a language model: each
    #: text's log-probability in nats and its number of tokens, as `predict` writes them.
    output: OptionalPath = None
    #: Add the scores to the model card, README.md in the model directory.
    card: Flag = False
    #: Print the result as one JSON object.
    json: Flag = False
    #: The search. The default precision is float32, because scores are compared across machines.
    decoding: Decoding = Decoding(precision="float32")
    risk: MinimumBayesRiskOptions = MinimumBayesRiskOptions()

    def run(self) -> None:
        """Predicts the corpus and prints the scores."""
        task, metrics = self._check()
        from vanilla_transformer.data.corpus import describe_empty_rows, read_corpus

        corpus = read_corpus(self._source(task.form), form=task.form)
        for sentence in describe_empty_rows(corpus, task.form):
            warn(f"{sentence}.")
        model, tokenizer = load_models(self._all_models, self.decoding, translates=False)
        self._report(self._evaluate(task, corpus, model, tokenizer, metrics), model)

    def _check(self) -> "tuple[Task, tuple[str, ...]]":
        """Finds mistakes before a model is loaded.

        Returns the task, and the metrics to score by.
        """
        from vanilla_transformer.tasks import choose_metrics, task_of_model

        if self.card:
            if self.models or self.risk.mbr:
                raise RecipeError("--card is for a single model and its own search, without --mbr.")
            if not Path(self.model).is_dir():
                raise RecipeError(f"--card requires a local model directory, which {self.model} is not.")
            from vanilla_transformer.training.model_card import check_card

            check_card(Path(self.model))
        self.decoding.arguments()
        self.risk.check(self.decoding.num_beams)
        self._check_paths()
        task = task_of_model(self.model)
        if (self.risk.mbr or self.models) and not _translates(task):
            raise RecipeError(f"--mbr and ensembles are for models that translate, which {self.model} does not.")
        metrics = choose_metrics(self.model, task, self.metrics or None)
        locate(self._source(task.form), task.form)
        return task, metrics

    def _evaluate(
        self,
        task: "Task",
        corpus: "Dataset",
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        metrics: tuple[str, ...],
    ) -> "Evaluation":
        """Predicts the corpus and scores the predictions."""
        from vanilla_transformer.tasks import count_texts

        unit = "sources" if _translates(task) else task.form.unit
        if _translates(task) and len(corpus) and list(corpus["source"]) == list(corpus["target"]):
            warn("source and target of the corpus are identical, so the scores only measure copying.")
        self.decoding.announce(model)
        settings = self._settings()
        if self.risk.mbr:
            settings["chosen"] = self.risk.translator
        with progress_bar(unit, total=count_texts(corpus, task.form)) as bar:
            return task.evaluate(model, tokenizer, corpus, metrics, progress=bar.update, **settings)

    def _report(self, evaluation: "Evaluation", model: "PreTrainedModel") -> None:
        """Prints the scores, and writes what was asked for."""
        text = "\n".join([*map(str, evaluation.scores.values()), *evaluation.sentences])
        print_result(json.dumps(self._as_json(evaluation, model)) if self.json else text)
        if self.output is not None:
            write_whole(self.output, evaluation.predictions)
        if self.card:
            from vanilla_transformer.training.model_card import add_scores

            scores = list(evaluation.scores.values())
            add_scores(Path(self.model), self._source(), scores, self.decoding.settings(model))

    def _settings(self) -> dict[str, Any]:
        """Returns the settings of the prediction for the task."""
        settings = self.decoding.arguments() | self.risk.arguments(self.decoding.num_beams)
        return settings | ({} if self.stride is None else {"stride": self.stride})

    def _check_paths(self) -> None:
        """Refuses an output that cannot be written or would overwrite an input, before hours of decoding."""
        for part in (Path(split_off(part)[0]) for part in self._source().parts):
            refuse_same_file(part, self.output)
            if self.output is not None and part.is_dir() and part.resolve() in self.output.resolve().parents:
                raise RecipeError(f"{self.output} is inside the corpus directory {part}: choose another file.")
        for model in self._all_models:
            refuse_model_file(model, self.output)
        check_standard_output()
        check_output(self.output)

    @property
    def _all_models(self) -> tuple[str, ...]:
        return (self.model, *self.models)

    def _source(self, form: TextForm | None = None) -> CorpusSpec:
        """Returns the corpus of --data, or for a form of text with the columns of training where it names none."""
        try:
            source = only_corpus(parse_corpora(self.data))
        except CorpusError as error:
            raise RecipeError(f"--data: {error}") from error
        if form is None:
            return source
        from vanilla_transformer.tasks import with_columns_of_model

        return with_columns_of_model(source, self.model, form)

    def _as_json(self, evaluation: "Evaluation", model: "PreTrainedModel") -> dict[str, Any]:
        return {
            "model": [self.model, *self.models] if self.models else self.model,
            "data": self.data,
            "settings": {
                **self.decoding.settings(model),
                **self.risk.settings(),
            },
            "scores": [dataclasses.asdict(score) for score in evaluation.scores.values()],
            **evaluation.figures,
        }


def _translates(task: "Task") -> bool:
    return task.auto_class == "AutoModelForSeq2SeqLM"
