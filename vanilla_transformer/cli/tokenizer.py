"""`vanilla-transformer tokenizer`: train a sub-word tokenizer."""

import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.cli.files import check_new_directory, read_input
from vanilla_transformer.errors import SettingError
from vanilla_transformer.options import OptionalCount


@dataclass(frozen=True)
class Tokenizer:
    """Train a sub-word tokenizer on text files, with one vocabulary for both languages (section 5.1)."""

    #: UTF-8 text files, plain or compressed (.gz, .bz2, .xz, .zst).
    files: Annotated[tuple[Path, ...], Positional, arg(metavar="FILE [FILE ...]", help_behavior_hint="")]
    #: Output directory; must be empty or not exist.
    output: Path
    #: Vocabulary size; optional only for presplit (default: all sub-words in the text).
    vocab_size: OptionalCount = None
    #: Sub-word algorithm; presplit expects text already segmented with `@@ ` as the continuation mark.
    algorithm: Literal["bpe", "wordpiece", "character", "presplit"] = "bpe"
    #: Lower-case text before splitting it, so that Hello is read as hello: for models that only read, such as
    #: classifiers. For translation use `train --tokenizer-lowercase`: the model then keeps the case of what it writes.
    lowercase: Flag = False

    def run(self) -> None:
        """Trains and saves the tokenizer."""
        from vanilla_transformer.tokenizer import lowercased, train_tokenizer

        if not self.files:
            raise SettingError("Give at least one file to train on.")
        check_new_directory(self.output)
        lines = chain.from_iterable(map(read_input, self.files))
        texts = map(lowercased, lines) if self.lowercase else lines
        tokenizer = train_tokenizer(texts, self.vocab_size, self.algorithm, lowercase=self.lowercase)
        with atomic_directory(self.output) as place:
            tokenizer.save_pretrained(place)
        print(f"{self.output}: {len(tokenizer):,} vocabulary entries", file=sys.stderr)
