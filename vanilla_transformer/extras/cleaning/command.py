"""`vanilla-transformer clean`: copies a corpus without the lines that a model should not learn from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, ShowProgress, UsageError, as_options
from vanilla_transformer.cli.streams import check_new_file, count_lines, print_result, refuse_directories
from vanilla_transformer.progress import progress_bar

_TABLES = (".tsv", ".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Clean:
    """Copy one text, or two line-aligned ones, without damaged, misaligned, copied or duplicate lines.

    The filters are applied in this order: encoding, empty, mojibake, length, ratio, script, copy, duplicate. A report
    says how many lines each one removed, with examples. The inputs are not changed.
    """

    inputs: Annotated[tuple[Path, ...], Positional, arg(metavar="FILE [FILE]", help_behavior_hint="")]
    """One text file, or the two files of a corpus, plain or compressed (.gz, .bz2, .xz, .zst)."""
    output: Annotated[tuple[Path, ...], arg(metavar="FILE [FILE]", help_behavior_hint="")]
    """One file to write for each input; it must not exist yet."""
    min_words: int = 1
    """Minimum words per line."""
    max_words: int = 200
    """Maximum words per line, separated by white space."""
    max_characters: int = 2000
    """Maximum characters per line."""
    max_ratio: float = 3.0
    """Maximum ratio of the two sides' lengths in characters, if either has 20 or more.
    Chinese with English needs a higher one."""
    scripts: Annotated[tuple[str, ...] | None, arg(metavar="SCRIPT ...", help_behavior_hint="")] = None
    """Scripts of the letters in each file, such as Latin or Han+Hiragana+Katakana
    (default: those in its first 10,000 lines)."""
    min_script_share: float = 0.5
    """Minimum share of a line's letters that must be in these scripts."""
    max_similarity: float = 0.9
    """Similarity (1 minus the edits per character) from which two sides count as copies."""
    skip: Annotated[tuple[str, ...], arg(metavar="FILTER ...", help_behavior_hint="")] = ()
    """Filters to skip: mojibake, length, ratio, script, copy, duplicate."""
    examples: int = 3
    """Lines that the report shows for each filter, drawn at random."""
    json: Flag = False
    """Print the report as JSON."""
    progress: ShowProgress = False

    def run(self) -> None:
        """Writes the clean files and prints the report."""
        try:
            from vanilla_transformer.extras.cleaning.cleaning import Filters, clean_files
        except ImportError as error:
            raise UsageError(
                f"The package {error.name} is not installed: run `pip install 'vanilla-transformer[clean]'`."
            ) from error
        with as_options():
            filters = Filters(
                min_words=self.min_words,
                max_words=self.max_words,
                max_characters=self.max_characters,
                max_ratio=self.max_ratio,
                scripts=self.scripts,
                min_script_share=self.min_script_share,
                max_similarity=self.max_similarity,
                skip=self.skip,
                examples=self.examples,
            )
        self._check()
        with progress_bar(self.progress, "lines", total=lambda: 2 * (count_lines(self.inputs[0]) or 0)) as bar:
            report = clean_files(self.inputs, self.output, filters, bar.update)
        if self.json:
            print_result(json.dumps(report.to_json(), ensure_ascii=False, indent=1))
        else:
            print_result(str(report))

    def _check(self) -> None:
        """Refuses files that cannot be read or written, before anything is read."""
        if len(self.inputs) not in (1, 2):
            raise UsageError(f"Give one file, or the two files of a corpus, not {len(self.inputs)}.")
        if len(self.output) != len(self.inputs):
            raise UsageError(f"--output needs as many files as there are inputs: {len(self.inputs)}.")
        refuse_directories(*self.inputs)
        for path in self.inputs:
            if path.with_suffix("").suffix in _TABLES or path.suffix in _TABLES:
                raise UsageError(
                    f"{path} is a table: write each column to a text file, and clean these files together."
                )
            if path.exists() and not path.is_file():
                raise UsageError(f"{path} is a pipe or a device, but the input is read twice: name a file.")
        if len({path.resolve() for path in (*self.inputs, *self.output)}) < 2 * len(self.inputs):
            raise UsageError("The inputs and outputs must be different files.")
        for path in self.output:
            check_new_file(path, "--output")
