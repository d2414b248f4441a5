"""`vanilla-transformer convert`: Marian to this package's model, and this package's model to Marian."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.files import check_new_directory, warn


@dataclass(frozen=True)
class Convert:
    """Convert a Marian (OPUS-MT) model to this package's model, or this package's model to Marian.

    The logits are identical. The tokenizer keeps its class, and `generate` uses the model's original settings, as far
    as the other type has them. transformers loads a Marian model without this package.
    """

    #: Model directory or Hub id; the type of the model determines the direction.
    source: Annotated[str, Positional, arg(metavar="SOURCE")]
    #: Output directory; must be empty or not exist.
    output: Annotated[Path, Positional, arg(metavar="OUTPUT")]

    def run(self) -> None:
        """Converts the model and prints its directory."""
        check_new_directory(self.output)
        from vanilla_transformer.export.conversion import convert

        model, tokenizer, remarks = convert(self.source)
        for remark in remarks:
            warn(remark)
        with atomic_directory(self.output) as place:
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
        print(self.output)
