"""`vanilla-transformer translate`: one line out for each line in."""

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Decoding, Flag, Model, OptionalPath, Resume, load_models
from vanilla_transformer.cli.files import answer_lines, check_files
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.options import OptionalCount

if TYPE_CHECKING:
    from vanilla_transformer.translation import LineTranslator, Translation


@dataclass(frozen=True)
class Translate:
    """Translate lines of text: always one output line per input line, in order.

    Empty lines stay empty. A line too long for the model is cut, translated and reported on standard error. Lines from
    a terminal or a pipe are answered as they arrive. From file to file, an interrupted run continues with --resume.
    """

    #: Directory or Hub id of the model.
    model: Model
    #: First any further models, as directories: they need the same vocabulary and form an ensemble with MODEL. Then a
    #: UTF-8 text file, plain or compressed (.gz, .bz2, .xz, .zst; default: standard input).
    inputs: Annotated[tuple[str, ...], Positional, arg(metavar="[MODEL ...] [INPUT ...]", help_behavior_hint="")] = ()
    #: File to write to, plain or compressed like the input (default: standard output).
    output: OptionalPath = None
    #: Write this many translations per line, best first, as `line ||| translation ||| score`; lines count from 0.
    nbest: OptionalCount = None
    resume: Resume = False
    #: Add the source words that each translated word comes from, as `translation ||| 0-0 1-2`: source-target, counted
    #: from 0 (with --nbest, before the score). `align --choose-heads` chooses the heads to read them from, once.
    alignment: Flag = False
    decoding: Decoding = Decoding()

    def run(self) -> None:
        """Translates from the input to the output, and warns of each line that was too long."""
        if len(self.files) > 1:
            raise RecipeError(
                f"{self.files[0]} is not a model directory, and translate reads one file: give others to calls of "
                "their own, or join them before."
            )
        if self.alignment and (self.decoding.mbr or len(self.models) > 1):
            raise RecipeError("--alignment reads the attention of one model, without --mbr.")
        input = Path(self.files[0]) if self.files else None
        check_files(input, self.output, self.models, resume=self.resume)
        translator = self.translator()
        answer_lines(
            input,
            self.output,
            translator.translate,
            self.format,
            chunk_lines=translator.chunk_lines,
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

    def translator(self) -> "LineTranslator":
        """Loads the models, and returns a translator with these options."""
        model, tokenizer = load_models(self.models, self.decoding)
        # Not before, so that all libraries are loaded as `loading_libraries` says.
        from vanilla_transformer.translation import LineTranslator

        translator = LineTranslator.from_model(model, tokenizer, **self.decoding.arguments(model, self.nbest))
        if self.alignment:
            from vanilla_transformer.inspection.alignment import AligningTranslator

            return AligningTranslator.from_translator(translator)
        return self.decoding.choosing(translator)

    def format(self, number: int, translation: "Translation") -> str:
        """Returns the lines of output for a translation."""
        lines = []
        for hypothesis in translation.hypotheses[: self.nbest or 1]:
            fields = [hypothesis.text] + ([] if hypothesis.alignment is None else [hypothesis.alignment])
            if self.nbest is not None:
                fields = [str(number), *fields, f"{hypothesis.score:.6f}"]
            lines.append(" ||| ".join(fields))
        return "\n".join(lines)
