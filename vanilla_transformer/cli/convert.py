"""`vanilla-transformer convert`: a Marian or FSMT model as ours, or ours as a Marian model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import refuse_full_directory
from vanilla_transformer.cli.streams import warn


@dataclass(frozen=True)
class Convert:
    """Turn a Marian (OPUS-MT) or FSMT (WMT19) model into one of ours, or one of ours into a Marian model.

    The logits stay the same. The tokenizer stays the one that the model had, in its own class; `generate` decodes
    with the settings that the model had.
    """

    source: Annotated[str, Positional, arg(metavar="SOURCE")]
    """Directory or Hub id of a model; its type says in which direction to go."""
    output: Annotated[Path, Positional, arg(metavar="OUTPUT")]
    """Directory for the model; it must be empty or not exist."""

    def run(self) -> None:
        """Converts, saves and prints the directory."""
        refuse_full_directory(self.output)
        from vanilla_transformer.export.conversion import convert

        converted = convert(self.source)
        for remark in converted.remarks:
            warn(remark)
        converted.save(self.output)
        print(self.output)
