"""`vanilla-transformer align`: links the words of a text and its translation by a model's attention."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, Model, OptionalPath
from vanilla_transformer.cli.files import check_output, read_input, write_whole
from vanilla_transformer.errors import SettingError

# The number of pairs on which heads are chosen, and of pairs that are aligned together.
_ENOUGH, _TOGETHER = 100, 1000


@dataclass(frozen=True)
class Align:
    """Align the words of a text with those of its translation, or choose the attention heads that do it best.

    Each pair gives one line, such as `0-0 1-2`: source-target, counted from 0. With --choose-heads, it chooses the
    heads once, on unlabelled text: those that attend most to the source words whose removal makes the target words
    least likely. They are saved in the model's generation_config.json, for this command and for
    `translate --alignment`.
    """

    #: Directory or Hub id of the model.
    model: Model
    #: UTF-8 text, one sentence per line.
    source: Annotated[Path, Positional, arg(metavar="SOURCE")]
    #: Its translation, line by line.
    target: Annotated[Path, Positional, arg(metavar="TARGET")]
    #: Choose heads on 100 of the pairs, and save them in the model's directory.
    choose_heads: Flag = False
    #: File to write to (default: standard output).
    output: OptionalPath = None

    def run(self) -> None:
        """Writes the alignments, or chooses heads and prints them."""
        if self.choose_heads and (self.output is not None or not Path(self.model).is_dir()):
            raise SettingError("--choose-heads writes to the directory of a model on this machine, without --output.")
        check_output(self.output, [self.source, self.target], [self.model])
        sources, targets = list(read_input(self.source)), list(read_input(self.target))
        if len(sources) != len(targets):
            raise SettingError(
                f"{self.source} has {len(sources):,} lines and {self.target} has {len(targets):,}: they must match."
            )
        from vanilla_transformer.inspection import alignments, choose_alignment_heads, save_alignment_heads
        from vanilla_transformer.loading.models import load_model

        model, tokenizer = load_model(self.model)
        if self.choose_heads:
            # At regular intervals, because a file may be sorted by length.
            count = min(len(sources), _ENOUGH)
            some = [number * len(sources) // count for number in range(count)]
            texts = [sources[number] for number in some], [targets[number] for number in some]
            chosen = choose_alignment_heads(model, tokenizer, *texts)
            save_alignment_heads(self.model, model, chosen.heads)
            print(chosen.heads)
            where = f"kept in {Path(self.model, 'generation_config.json')}"
            print(f"Agreement {chosen.agreement:.2f} on {chosen.pairs} pairs; {where}.", file=sys.stderr)
            return

        def lines() -> Iterator[str]:
            for start in range(0, len(sources), _TOGETHER):
                texts = sources[start : start + _TOGETHER], targets[start : start + _TOGETHER]
                yield from (found.pharaoh() for found in alignments(model, tokenizer, *texts))

        write_whole(self.output, lines())
