"""`vanilla-transformer evaluate`: score a model on a corpus."""

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Decoding, Flag, Model, OptionalPath, load_models, loading_libraries
from vanilla_transformer.cli.files import check_output, write_whole
from vanilla_transformer.data.sources import one_corpus, split_off
from vanilla_transformer.errors import RecipeError

if TYPE_CHECKING:
    from vanilla_transformer.evaluation.scoring import Evaluation


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
    #: Write the translations, labels or tags to this file, one line per row of the corpus. For a language model: each
    #: text's log-probability in nats and its number of tokens, as `predict` writes them.
    output: OptionalPath = None
    #: Add the scores to the model card, README.md in the model directory.
    card: Flag = False
    #: Print the result as one JSON object.
    json: Flag = False
    #: The search. The default precision is float32, because scores are compared across machines.
    decoding: Decoding = Decoding(precision="float32")

    def run(self) -> None:
        """Predicts the corpus and prints the scores."""
        with loading_libraries():
            from vanilla_transformer.data.corpus import read_corpus
            from vanilla_transformer.progress import progress_bar
            from vanilla_transformer.tasks import (
                choose_metrics,
                count_empty_rows,
                count_texts,
                task_of_model,
                with_columns_of_model,
            )

        spec = one_corpus(self.data)
        check_output(self.output, (Path(split_off(part)[0]) for part in spec.parts), [self.model, *self.models])
        if self.card:
            self._check_card()
        task = task_of_model(self.model)
        translates = task.command == "translate"
        if (self.decoding.mbr or self.models) and not translates:
            raise RecipeError(f"--mbr and ensembles are for models that translate, which {self.model} does not.")
        metrics = choose_metrics(self.model, task, self.metrics or None)
        corpus = read_corpus(with_columns_of_model(spec, self.model, task.form), form=task.form)
        if self.decoding.precision == "int8" and not translates:
            raise RecipeError(f"--precision int8 is for models that translate, which {self.model} does not.")
        settings: dict[str, Any] = self.decoding.search
        if self.decoding.batch_tokens is not None:
            settings["batch_tokens"] = self.decoding.batch_tokens
        computing = self.decoding
        if translates:
            settings = {**self.decoding.settings(), "mbr": self.decoding.mbr}
            if self.decoding.precision != "bfloat16":  # The weights that a translator makes its own from.
                computing = replace(computing, precision="float32")
        model, tokenizer = load_models((self.model, *self.models), computing, translates=False)
        with progress_bar("sources" if translates else task.form.unit, total=count_texts(corpus, task.form)) as bar:
            evaluation = task.evaluate(model, tokenizer, corpus, metrics, progress=bar.update, **settings)
        evaluation.figures.update(count_empty_rows(corpus, task.form))
        scored = self.decoding.scored_settings(evaluation.precision or self.decoding.precision_of(model))
        self._report(evaluation, scored)
        if self.card:
            from vanilla_transformer.training.model_card import add_scores

            add_scores(Path(self.model), spec, list(evaluation.scores.values()), scored)

    def _check_card(self) -> None:
        """Finds out whether scores can be added to the model card, before they are computed."""
        if self.models or self.decoding.mbr:
            raise RecipeError("--card is for a single model and its own search, without --mbr.")
        if not Path(self.model).is_dir():
            raise RecipeError(f"--card requires a local model directory, which {self.model} is not.")
        from vanilla_transformer.training.model_card import check_card

        check_card(Path(self.model))

    def _report(self, evaluation: "Evaluation", settings: dict[str, object]) -> None:
        """Prints the scores, and writes the predictions if asked for."""
        result = {
            "model": [self.model, *self.models] if self.models else self.model,
            "data": self.data,
            "settings": settings,
            "scores": [dataclasses.asdict(score) for score in evaluation.scores.values()],
            **evaluation.figures,
        }
        figures = (f"{name.replace('_', ' ')}: {round(value, 1):,}" for name, value in evaluation.figures.items())
        lines = [*map(str, evaluation.scores.values()), "; ".join(figures)]
        write_whole(None, [json.dumps(result)] if self.json else lines)
        if self.output is not None:
            write_whole(self.output, evaluation.predictions)
