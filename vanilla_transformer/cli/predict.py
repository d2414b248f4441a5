"""`vanilla-transformer predict`: predictions of a classifier, a tagger or a language model for each text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import BatchedComputing, Flag, Model, OptionalPath, Resume
from vanilla_transformer.cli.files import answer_lines, check_files
from vanilla_transformer.errors import SettingError
from vanilla_transformer.options import OptionalText

if TYPE_CHECKING:
    from datasets import Dataset

    from vanilla_transformer.data.sources import TextForm


@dataclass(frozen=True)
class Predict:
    """Predict a label or tags for each text: one output line per input line or row, in order.

    A classifier writes the label, a tab and its probability. A tagger writes one tag per word, separated by spaces;
    words are separated by white space. A language model writes the text's log-probability in nats and its number of
    tokens. Empty lines stay empty. A text too long for a classifier or a tagger is cut and reported on standard error.
    From file to file, an interrupted run continues with --resume.
    """

    #: Directory or Hub id of the model.
    model: Model
    #: File with one text per line, plain or compressed (.gz, .bz2, .xz, .zst); a table (TSV, CSV, JSONL, Parquet); or,
    #: for a tagger, CoNLL columns (.conll, .conllu) (default: lines of standard input).
    input: Annotated[Path | None, Positional, arg(metavar="[INPUT]", help_behavior_hint="")] = None
    #: File to write to, plain or compressed like the input (default: standard output).
    output: OptionalPath = None
    #: Write one JSON object per line, with the probability of each label, or words, tags and probabilities.
    json: Flag = False
    #: Column of the text in a table, or of the words in CoNLL columns, by name or number (default: as in the model's
    #: recipe).
    text_column: OptionalText = None
    #: Column of the second text in a table, for pairs of texts.
    text_pair_column: OptionalText = None
    computing: BatchedComputing = BatchedComputing()
    resume: Resume = False

    def run(self) -> None:
        """Predicts from the input to the output, and warns of each text that was too long."""
        check_files(self.input, self.output, [self.model], resume=self.resume)
        from vanilla_transformer.tasks import task_of_model

        task = task_of_model(self.model)
        table = self._table(task.form)
        if table is None and (self.text_column or self.text_pair_column):
            raise SettingError("--text-column and --text-pair-column are for tables: lines of text have no columns.")
        model, tokenizer = self.computing.load(self.model)
        predictor = task.predictor(model, tokenizer, batch_tokens=self.computing.batch_tokens)
        read = predictor.read if table is None else json.loads
        answer_lines(
            self.input,
            self.output,
            lambda lines, progress: predictor.predict([tuple(read(line)) for line in lines], progress),
            lambda _, answer: json.dumps(answer.values, ensure_ascii=False) if self.json else answer.line,
            chunk_lines=predictor.chunk_lines,
            rows=None if table is None else (json.dumps([*row.values()], ensure_ascii=False) for row in table),
            resume=self.resume,
        )

    def _table(self, form: "TextForm") -> "Dataset | None":
        """Returns the rows of an input that is a table or CoNLL columns; None for lines of text."""
        from vanilla_transformer.data.corpus import read_corpus
        from vanilla_transformer.data.sources import CorpusSpec, has_columns
        from vanilla_transformer.evaluation.corpora import with_columns_of_model

        if self.input is None or not has_columns(str(self.input), form):
            return None
        columns = {"text_column": self.text_column, "text_pair_column": self.text_pair_column}
        corpus = CorpusSpec(
            (str(self.input),), columns={name: one for name, one in columns.items() if one is not None}
        )
        form = form.without_labels()
        return read_corpus(with_columns_of_model(corpus, self.model, form), form=form).select_columns(list(form.names))
