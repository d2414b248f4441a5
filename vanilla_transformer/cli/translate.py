"""`vanilla-transformer translate`: one line out for each line in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import DecodingOptions, Flag, Model, OptionalPath, Resume
from vanilla_transformer.cli.files import answer_lines, check_files
from vanilla_transformer.errors import SettingError
from vanilla_transformer.options import OptionalCount

if TYPE_CHECKING:
    from vanilla_transformer.translation import TranslationResult

    Work = Callable[[list[str], Callable[[int], object]], list[TranslationResult]]


@dataclass(frozen=True)
class Translate:
    """Translate lines of text: always one output line per input line, in order.

    Empty lines stay empty. A line too long for the model is cut, translated and reported on standard error. Lines from
    a terminal or a pipe are answered as they arrive. From file to file, an interrupted run continues with --resume.
    """

    #: Directory or Hub id of the model.
    model: Model
    #: Directories of further models with the same vocabulary, which form an ensemble with MODEL; then the input: a
    #: UTF-8 text file, plain or compressed (.gz, .bz2, .xz, .zst; default, or -: standard input).
    inputs: Annotated[tuple[str, ...], Positional, arg(metavar="[MODEL ...] [INPUT ...]", help_behavior_hint="")] = ()
    #: File to write to, plain or compressed like the input (default: standard output).
    output: OptionalPath = None
    #: Write this many translations per line, best first, as `line ||| translation ||| score`; lines count from 0.
    nbest: OptionalCount = None
    resume: Resume = False
    #: Add the source words that each translated word comes from, as `translation ||| 0-0 1-2`: source-target, counted
    #: from 0 (with --nbest, before the score). `align --choose-heads` chooses the heads to read them from, once.
    alignment: Flag = False
    decoding: DecodingOptions = DecodingOptions()

    def run(self) -> None:
        """Translates from the input to the output, and warns of each line that was too long."""
        if len(self.files) > 1:
            raise SettingError(
                f"{self.files[0]} is not a model directory, and translate reads one file: give others to calls of "
                "their own, or join them before."
            )
        if self.alignment and (self.decoding.mbr or len(self.models) > 1):
            raise SettingError("--alignment reads the attention of one model, without --mbr.")
        input = Path(self.files[0]) if self.files not in ((), ("-",)) else None
        check_files(input, self.output, self.models, resume=self.resume)
        work, chunk_lines = self.translating()
        answer_lines(
            input,
            self.output,
            work,
            self.format,
            chunk_lines=chunk_lines,
            answer_lines=self.nbest or 1,
            resume=self.resume,
        )

    @property
    def models(self) -> tuple[str, ...]:
        """The models that translate together: the first, and the directories of models right after it."""
        return (self.model, *takewhile(lambda name: Path(name, "config.json").is_file(), self.inputs))

    @property
    def files(self) -> tuple[str, ...]:
        """The files to read; empty for standard input."""
        return self.inputs[len(self.models) - 1 :]

    def translating(self) -> "tuple[Work, int]":
        """Loads the models; returns what translates lines with these options, and the number of lines at a time."""
        if self.alignment:
            return self._aligning()
        translator = self.decoding.translator(self.models, self.nbest)
        if self.decoding.mbr is None:
            return translator.translate, translator.chunk_lines
        from vanilla_transformer.translation.minimum_bayes_risk import by_minimum_bayes_risk

        choose = partial(by_minimum_bayes_risk, utility=self.decoding.mbr)
        return lambda lines, progress: list(map(choose, translator.translate(lines, progress))), translator.chunk_lines

    def _aligning(self) -> "tuple[Work, int]":
        """Translates, and reads the attention of the model itself afterwards."""
        from vanilla_transformer.inspection.alignment import Aligner, AlignmentHeads, aligned
        from vanilla_transformer.translation import Translator

        model, tokenizer = replace(self.decoding, precision="float32").load(self.model, translates=True)
        translator = Translator(model, tokenizer, **self.decoding.settings(self.nbest))
        aligner, heads = Aligner(model, tokenizer), AlignmentHeads.from_model(model)
        work = translator.translate
        return lambda lines, progress: aligned(aligner, heads, lines, work(lines, progress)), translator.chunk_lines

    def format(self, number: int, translation: "TranslationResult") -> str:
        """Returns the lines of output for a translation."""
        lines = []
        for hypothesis in translation.hypotheses[: self.nbest or 1]:
            fields = [hypothesis.text] + ([] if hypothesis.alignment is None else [hypothesis.alignment])
            if self.nbest is not None:
                fields = [str(number), *fields, f"{hypothesis.score or 0.0:.6f}"]
            lines.append(" ||| ".join(fields))
        return "\n".join(lines)
