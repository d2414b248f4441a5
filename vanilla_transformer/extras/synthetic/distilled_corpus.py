"""Word-level distillation (Kim and Rush 2016): a teacher's soft targets for a corpus, kept on disk.

For each target token, in the order of the rows, one file holds the ids of the teacher's likeliest types and another
their probabilities, which sum to 1.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vanilla_transformer.atomic_files import atomic_write_text
from vanilla_transformer.data.token_corpus import PreparedCorpus, Rows
from vanilla_transformer.extras.mixing.mixed_corpus import MixedCorpus
from vanilla_transformer.fingerprints import fingerprint_settings

IDS_FILE, PROBABILITIES_FILE, FACTS_FILE = "ids.bin", "probabilities.bin", "soft-targets.json"
PROBABILITY = np.dtype("<f2")


class SoftTargetsError(ValueError):
    """Soft targets that are missing, or belong to another run; the message says what to do."""


@dataclass(frozen=True)
class SoftTargetsFacts:
    """Identifies the soft targets of a corpus.

    Attributes:
        teacher: The fingerprint of the teacher or teachers.
        top_k: Number of types kept for each token.
        vocab_size: Size of the vocabulary.
        max_length: Maximum length of a row in tokens.
        texts: A hash of the text of each corpus.
        tokens: A hash of the tokens of each corpus.
        target_tokens: Number of target tokens.
        contents: A hash of both files; None while they are being written.
    """

    teacher: str
    top_k: int
    vocab_size: int
    max_length: int
    texts: list[str]
    tokens: list[str]
    target_tokens: int
    contents: str | None = None

    @classmethod
    def read(cls, directory: Path) -> "SoftTargetsFacts":
        """Reads the facts of a directory, whose files may be unfinished.

        Raises:
            SoftTargetsError: The directory has no soft targets.
        """
        try:
            return cls(**json.loads((directory / FACTS_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise SoftTargetsError(
                f"{directory} has no readable soft targets: make them with `vanilla-transformer soft-targets`."
            ) from error

    def write(self, directory: Path) -> None:
        """Writes the facts beside the files."""
        atomic_write_text(directory / FACTS_FILE, json.dumps(asdict(self), indent=2) + "\n")

    @property
    def id_type(self) -> np.dtype[Any]:
        """Type of the ids: 16 bits where the vocabulary fits, otherwise 32."""
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")


def parts_of(corpus: PreparedCorpus) -> Sequence[PreparedCorpus]:
    """Returns the corpora of a mixture, or the corpus itself."""
    return corpus.parts if isinstance(corpus, MixedCorpus) else (corpus,)


class SoftTargets:
    """The soft targets in a directory, memory-mapped.

    Raises:
        SoftTargetsError: There are none, or they are incomplete.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory, self.facts = Path(directory), SoftTargetsFacts.read(Path(directory))
        if self.facts.contents is None:
            raise SoftTargetsError(f"{directory} is not finished: run the same `soft-targets` command again.")
        self.ids = self._mapped(IDS_FILE, self.facts.id_type)
        self.probabilities = self._mapped(PROBABILITIES_FILE, PROBABILITY)

    def _mapped(self, name: str, kind: np.dtype[Any]) -> np.memmap[Any, Any]:
        path, shape = self.directory / name, (self.facts.target_tokens, self.facts.top_k)
        wanted, found = kind.itemsize * math.prod(shape), path.stat().st_size if path.is_file() else 0
        if found != wanted:
            raise SoftTargetsError(
                f"{path} has {found:,} bytes, but its {FACTS_FILE} records {wanted:,}: remove "
                f"{self.directory}, and make the soft targets again."
            )
        return np.memmap(path, kind, "r", shape=shape)

    def check(self, corpus: PreparedCorpus, max_length: int) -> None:
        """Refuses a corpus that the teacher has not read, or has read as other tokens.

        Raises:
            SoftTargetsError: The corpora differ; the message says in what.
        """
        facts, parts = self.facts, parts_of(corpus)
        if facts.texts != [text for part in parts for text in part.texts]:
            difference = "the teacher read another text"
        elif facts.max_length != max_length:
            difference = f"max_length was {facts.max_length:,} and is {max_length:,}"
        elif facts.tokens != [part.tokens for part in parts]:
            difference = "the tokenizer or a tag differs"
        else:
            return
        raise SoftTargetsError(
            f"The soft targets in {self.directory} do not match the training data: {difference}. Give the "
            "data they were made from, or make them again."
        )


class DistilledCorpus(PreparedCorpus):
    """A corpus with soft targets: the teacher's types at each target token, with the share of the loss of each.

    Args:
        corpus: The rows, of one corpus or of a mixture.
        targets: The teacher's soft targets.
        weight: The sum of the shares of a token.
    """

    def __init__(self, corpus: PreparedCorpus, targets: SoftTargets, weight: float) -> None:
        self._corpus, self._targets, self._weight = corpus, targets, weight
        self.report, self.texts, self.lengths = corpus.report, corpus.texts, corpus.lengths
        self.tokens = fingerprint_settings([corpus.tokens, targets.facts.contents])
        self._starts = np.cumsum(
            [0, *np.concatenate([part.lengths["target"] for part in parts_of(corpus)]).astype(np.int64)]
        )

    def of_epoch(self, epoch: int) -> PreparedCorpus:
        """Return the rows of an epoch with their soft targets."""
        rows = self._corpus.of_epoch(epoch)
        return self if rows is self._corpus else DistilledCorpus(rows, self._targets, self._weight)

    def row_numbers(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the rows in the corpus."""
        return self._corpus.row_numbers(indices)

    def rows(self, indices: Sequence[int] | NDArray[np.integer]) -> Rows:
        """Return the ids of the rows at `indices` by column, and the types and shares of each target token."""
        places = np.asarray(indices, dtype=np.int64)
        if isinstance(self._corpus, MixedCorpus):
            places = self._corpus.pairs[places]
        spans = [slice(self._starts[place], self._starts[place + 1]) for place in places.tolist()]
        rows: dict[str, Sequence[Any]] = dict(self._corpus.rows(indices))
        rows["soft_target_ids"] = [self._targets.ids[span] for span in spans]
        rows["soft_target_weights"] = [self._shares(self._targets.probabilities[span]) for span in spans]
        return rows

    def _shares(self, probabilities: NDArray[np.float16]) -> NDArray[np.float32]:
        """Scales probabilities to sum to the weight, which undoes the rounding to 16 bits."""
        exact = probabilities.astype(np.float32)
        return exact * (self._weight / exact.sum(axis=1, keepdims=True))
