"""`vanilla-transformer back-translate` and `distil`: training pairs made of text and a model's translation of it."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import (
    Directory,
    Model,
    OptionalText,
    ShowProgress,
    UsageError,
    as_options,
    refuse_full_directory,
)
from vanilla_transformer.cli.decoding import Decoding
from vanilla_transformer.cli.streams import print_result, warn
from vanilla_transformer.cli.translate import Translate
from vanilla_transformer.extras.many_machines.task_options import TaskOptions
from vanilla_transformer.extras.sampling.sampling_options import SamplingOptions
from vanilla_transformer.progress import progress_bar
from vanilla_transformer.seams import load

if TYPE_CHECKING:
    from vanilla_transformer.extras.synthetic.pairs import Filters

# Above this share of common words, text and translations are most likely in one language.
_ONE_LANGUAGE = 0.5
EnsembleOptions: Any = load("options", "ensemble")
_Texts = Annotated[tuple[str, ...], Positional, arg(metavar="INPUT [INPUT ...]", help_behavior_hint="")]


@dataclass(frozen=True)
class FilterOptions:
    """Filters of the pairs; empty and repeated lines are never translated."""

    max_length: int = 256
    """Maximum tokens of a line and of its translation, as in `train`."""
    length_ratio: float = 3.0
    """Maximum ratio between the token counts of a line and its translation, either way."""

    def check(self, copy_overlap: float | None = None) -> "Filters":
        """Returns the filters, or refuses numbers that make no sense."""
        from vanilla_transformer.extras.synthetic.pairs import Filters

        with as_options():
            return Filters(self.max_length, self.length_ratio, copy_overlap)


@dataclass(frozen=True)
class BackTranslate:
    """Make training pairs from text in the target language, which a reverse model translates back.

    Writes OUTPUT/source.txt (the model's translations), OUTPUT/target.txt (the given text) and OUTPUT/report.json,
    which counts what each filter removed. Prints the names of both text files, ready for `train`:
    `train --train real.en real.de + OUTPUT/source.txt OUTPUT/target.txt tag=BT`

    If interrupted, run the same command again to continue. OUTPUT/work keeps all translations, so that changing the
    filters does not repeat them.
    """

    inputs: _Texts
    """UTF-8 text files in the target language, one sentence per line: plain, compressed or Parquet."""
    reverse: Annotated[str, arg(metavar="MODEL")]
    """Model that translates from the target language into the source language."""
    output: Directory
    """Directory for the pairs."""
    copy_overlap: float = 0.5
    """Maximum share of a translation's words that also occur in its line; 1 turns this filter off."""
    source_column: OptionalText = None
    """Column of a Parquet input to translate (default: its only text column)."""
    progress: ShowProgress = False
    filters: Annotated[FilterOptions, arg(name="filter")] = FilterOptions()
    decoding: Decoding = Decoding()
    sampling: SamplingOptions = SamplingOptions()
    numbered: Annotated[TaskOptions, arg(name="task")] = TaskOptions()

    def run(self) -> None:
        """Selects lines, translates them, and writes the pairs that pass the filters."""
        command = Translate(
            self.reverse,
            self.inputs,
            source_column=self.source_column,
            progress=self.progress,
            decoding=self.decoding,
            sampling=self.sampling,
            numbered=self.numbered,
        )
        _Synthesis(command, self.output, self.filters.check(self.copy_overlap), "source.txt").run()


@dataclass(frozen=True)
class Distil:
    """Make training pairs for a smaller model: text and its translation by a larger model, the teacher.

    Writes OUTPUT/source.txt (the given text), OUTPUT/target.txt (the teacher's translations) and OUTPUT/report.json,
    which counts what each filter removed. Prints the names of both text files, ready for `train`:
    `train --train OUTPUT/source.txt OUTPUT/target.txt --tokenizer TEACHER --decoder-layers 1`

    Several teachers form an ensemble. If interrupted, run the same command again to continue. OUTPUT/work keeps all
    translations, so that changing the filters does not repeat them.
    """

    teacher: Annotated[Model, arg(metavar="TEACHER")]
    """Directory or Hub id of the teacher."""
    inputs: Annotated[
        tuple[str, ...], Positional, arg(metavar="[TEACHER ...] INPUT [INPUT ...]", help_behavior_hint="")
    ]
    """First any further teachers, as directories: they need the same vocabulary and form an ensemble with TEACHER.
    Then UTF-8 text files in the source language, one sentence per line: plain, compressed or Parquet."""
    output: Directory
    """Directory for the pairs."""
    source_column: OptionalText = None
    """Column of a Parquet input to translate (default: its only text column)."""
    progress: ShowProgress = False
    filters: Annotated[FilterOptions, arg(name="filter")] = FilterOptions()
    ensemble: EnsembleOptions = EnsembleOptions()
    decoding: Decoding = Decoding()
    sampling: SamplingOptions = SamplingOptions()
    numbered: Annotated[TaskOptions, arg(name="task")] = TaskOptions()

    def run(self) -> None:
        """Selects lines, translates them, and writes the pairs that pass the filters."""
        command = Translate(
            self.teacher,
            self.inputs,
            ensemble=self.ensemble,
            source_column=self.source_column,
            progress=self.progress,
            decoding=self.decoding,
            sampling=self.sampling,
            numbered=self.numbered,
        )
        _Synthesis(command, self.output, self.filters.check(), "target.txt").run()


@dataclass(frozen=True)
class _Synthesis:
    """A directory of lines paired with their translations, which may be the sources or the targets.

    Attributes:
        command: The `translate` command, with the inputs as they were given.
        translated: The name of the file of the translations.
    """

    command: Translate
    output: str
    filters: "Filters"
    translated: str

    def run(self) -> None:
        """Continues where it stopped, and writes the pairs once the last task is done."""
        from vanilla_transformer.data.text_lines import read_lines

        numbered, selected = self.command.numbered, self._work / "selected.txt"
        place = self._work / ("translations.txt" if numbered.tasks is None else "tasks")
        translate = replace(
            self.command,
            inputs=(*self.command.models[1:], str(selected)),
            output=str(place),
            resuming=replace(self.command.resuming, resume=numbered.tasks is None),
            source_column=None,
        )
        translate.check()
        self._check()
        counts = self._select(selected)
        if not counts["kept"]:
            self._write(selected, (), counts)
            return
        translate.run()
        if numbered.tasks is not None and (left := self._unfinished(place)):
            print(f"{left:,} of {numbered.tasks:,} tasks are left.", file=sys.stderr)
            return
        self._write(selected, read_lines(place) if numbered.tasks is None else _joined(place), counts)

    @property
    def _work(self) -> Path:
        return Path(self.output, "work")

    def _check(self) -> None:
        """Refuses impossible settings before a model is loaded."""
        if not self.command.files:
            raise UsageError("There is no text: name a file with text.")
        if "://" in self.output:
            raise UsageError(f"{self.output} is not on this machine: name a local directory for --output.")
        if not (self._work / "job.json").is_file():
            with suppress(OSError):
                self._work.rmdir()  # An empty folder is left when an earlier run found the disk full.
            refuse_full_directory(Path(self.output))
        if self.command.numbered.tasks is not None:
            self.command.numbered.check(self.output)

    def _select(self, selected: Path) -> dict[str, int]:
        """Selects the lines to translate and counts those left out; a later run finds the same selection on disk."""
        from vanilla_transformer.extras.many_machines.folder import TaskFolder
        from vanilla_transformer.extras.many_machines.parts import cut, identity, read_part
        from vanilla_transformer.extras.synthetic.pairs import longest_source, select_lines, token_counter

        command, folder, longest = self.command, TaskFolder(str(self._work)), self.filters.max_length
        [part] = cut(command.files, 1)
        folder.claim(
            {
                "model": command.ensemble.fingerprint(command.models),
                "input": {path: identity(path) for path in command.files},
                "--source-column": command.source_column,
                "--max-length": longest,
            }
        )
        counts = folder.read("selected.json")
        if counts is None or not selected.is_file() or selected.stat().st_size != counts["size"]:
            with progress_bar(command.progress, "lines read", quiet=True) as bar:
                most = min(longest_source(model, longest) for model in command.models)
                counts = select_lines(
                    partial(read_part, part, command.source_column),
                    selected,
                    token_counter(command.model, most),
                    most,
                    bar.update,
                )
            counts["size"] = selected.stat().st_size
            folder.write("selected.json", counts)
        return counts

    def _unfinished(self, place: Path) -> int:
        from vanilla_transformer.extras.many_machines.folder import TaskFolder
        from vanilla_transformer.extras.many_machines.numbered_translation import unfinished

        return len(unfinished(TaskFolder(str(place)), self.command.numbered.tasks or 0))

    def _write(self, selected: Path, translations: Iterable[str], counts: dict[str, int]) -> None:
        from vanilla_transformer.data.text_lines import read_lines
        from vanilla_transformer.extras.synthetic.pairs import (
            SOURCE,
            TARGET,
            SyntheticError,
            token_counter,
            write_pairs,
        )

        command = self.command
        report: dict[str, Any] = {
            "read": counts["read"],
            "dropped": {name: counts[name] for name in ("empty", "duplicate", "too_long")},
            "model": command.ensemble.fingerprint(command.models),
            "translated": self.translated,
        }
        with progress_bar(command.progress, "pairs", total=counts["kept"], quiet=True) as bar:
            report = write_pairs(
                read_lines(selected),
                translations,
                Path(self.output),
                token_counter(command.model, self.filters.max_length),
                self.filters,
                translated=self.translated,
                report=report,
                progress=bar.update,
            )
        overlap = self.filters.copy_overlap
        if overlap is not None and overlap < 1 and report["shared_words"] > _ONE_LANGUAGE:
            warn(
                f"{report['shared_words']:.0%} of the words in the first translations are words of the text: does "
                f"{command.model} translate from the language of the text?"
            )
        dropped = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in report["dropped"].items() if n)
        if not report["kept"]:
            raise SyntheticError(
                f"No pair is left of {report['read']:,} lines; removed: {dropped or 'nothing'}. Give other "
                "text or filters."
            )
        print(
            f"{report['kept']:,} pairs of {report['read']:,} lines"
            + (f"; removed: {dropped}." if dropped else "; nothing was removed."),
            file=sys.stderr,
        )
        print_result(f"{Path(self.output, SOURCE)} {Path(self.output, TARGET)}")


def _joined(place: Path) -> Iterator[str]:
    """Yields the lines that numbered tasks have written, after comparing each part with its record."""
    from vanilla_transformer.extras.many_machines.folder import TaskFolder
    from vanilla_transformer.extras.many_machines.numbered_translation import join_parts

    for lines in join_parts(TaskFolder(str(place))):
        yield from lines.decode().split("\n")[:-1]
