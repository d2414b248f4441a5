"""`vanilla-transformer evaluate`: score a model on a corpus."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import DecodingOptions, Flag, Model, OptionalPath
from vanilla_transformer.cli.files import check_output, write_whole
from vanilla_transformer.data.sources import PAIRS, one_corpus, split_off
from vanilla_transformer.errors import SettingError
from vanilla_transformer.model_directory import RECIPE

if TYPE_CHECKING:
    from vanilla_transformer.evaluation.scoring import EvaluationResult
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
    #: tokenized_bleu, paper_bleu (German; paper_bleu:fr for French), wer, per. Classifiers: accuracy, macro_f1.
    #: Taggers: token_accuracy, seqeval. Language models: perplexity, bits_per_character, bits_per_byte.
    metrics: Annotated[tuple[str, ...], arg(metavar="METRIC ...", help_behavior_hint="")] = ()
    #: Write the translations, labels or tags to this file, one line per row of the corpus. For a language model: each
    #: text's log-probability in nats and its number of tokens, as `predict` writes them.
    output: OptionalPath = None
    #: Add the scores to the model card, README.md in the model directory.
    card: Flag = False
    #: Print the result as one JSON object.
    json: Flag = False
    #: The search. The default precision is float32, because scores are compared across machines.
    decoding: DecodingOptions = DecodingOptions(precision="float32")

    def run(self) -> None:
        """Predicts the corpus and prints the scores."""
        from vanilla_transformer.data.corpus import read_corpus
        from vanilla_transformer.evaluation import METRICS, evaluate_translation
        from vanilla_transformer.evaluation.corpora import (
            choose_metrics,
            count_empty_rows,
            count_texts,
            with_columns_of_model,
        )
        from vanilla_transformer.progress import progress_bar

        spec = one_corpus(self.data)
        check_output(self.output, (Path(split_off(part)[0]) for part in spec.parts), [self.model, *self.models])
        if self.card:
            self._check_card()
        task = None if _translates(self.model) else self._task()
        form, known, unit = (task.form, task.metrics, task.form.unit) if task else (PAIRS, METRICS, "sources")
        metrics = choose_metrics(self.model, known, self.metrics or None)
        corpus = read_corpus(with_columns_of_model(spec, self.model, form), form=form)
        with progress_bar(unit, total=count_texts(corpus, form)) as bar:
            if task:
                given, batch_tokens = self.decoding.search, self.decoding.batch_tokens
                given |= {} if batch_tokens is None else {"batch_tokens": batch_tokens}
                model, tokenizer = self.decoding.load(self.model)
                evaluation = task.evaluate(model, tokenizer, corpus, metrics, progress=bar.update, **given)
                precision = str(model.dtype).removeprefix("torch.")
            else:
                translator, mbr = self.decoding.translator((self.model, *self.models)), self.decoding.mbr
                evaluation = evaluate_translation(translator, corpus, metrics, progress=bar.update, mbr=mbr)
                precision = translator.precision
        evaluation.figures.update(count_empty_rows(corpus, form))
        scored = self.decoding.scored_settings(precision)
        self._report(evaluation, scored)
        if self.card:
            from vanilla_transformer.training.model_card import add_scores

            add_scores(Path(self.model), spec, list(evaluation.scores.values()), scored)

    def _task(self) -> "Task | None":
        """Returns the task of a model, or None if it is scored like the translation models of this package."""
        from vanilla_transformer.tasks import scores_translations, task_of_model

        task = task_of_model(self.model)
        if scores_translations(task):
            return None
        if self.decoding.mbr or self.models or self.decoding.precision == "int8":
            raise SettingError(
                "--mbr and ensembles are for models that translate by the task translation, as is --precision int8: "
                f"{self.model} is for {task.name}."
            )
        return task

    def _check_card(self) -> None:
        """Raises an error if scores could not be added to the model card, before they are computed."""
        if self.models or self.decoding.mbr or not Path(self.model).is_dir():
            raise SettingError("--card is for the directory of a single model and its own search, without --mbr.")
        from vanilla_transformer.training.model_card import check_card

        check_card(Path(self.model))

    def _report(self, evaluation: "EvaluationResult", settings: dict[str, object]) -> None:
        """Prints the scores, and writes the predictions to a file if one is named."""
        result = {
            "model": [self.model, *self.models] if self.models else self.model,
            "data": self.data,
            "settings": settings,
            "scores": [dataclasses.asdict(score) for score in evaluation.scores.values()],
            **evaluation.figures,
        }
        figures = (f"{name.replace('_', ' ')}: {round(value, 1):,}" for name, value in evaluation.figures.items())
        lines = [*map(str, evaluation.scores.values()), "; ".join(figures)]
        # JSON has neither NaN nor infinity.
        in_json = json.dumps(json.loads(json.dumps(result), parse_constant=lambda name: None))
        write_whole(None, [in_json] if self.json else lines)
        if self.output is not None:
            write_whole(self.output, evaluation.predictions)


def _translates(model: str) -> bool:
    """Returns True if a directory contains a translation model. The module of the tasks would import torch."""
    from vanilla_transformer.graph.supported import MODEL
    from vanilla_transformer.recipe.reading import load_recipe

    recipe, config = Path(model, RECIPE), Path(model, "config.json")
    if recipe.is_file() and load_recipe(recipe, lenient=True).used("task"):
        return False
    try:
        return bool(json.loads(config.read_text(encoding="utf-8"))["architectures"] == [MODEL])
    except (OSError, ValueError, LookupError, TypeError):
        return False
