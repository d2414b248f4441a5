"""Models in folders for other runtimes than torch, which extras recognise and open."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from vanilla_transformer.seams import load, names
from vanilla_transformer.translation.lines import Translator


class ExportError(ValueError):
    """An unusable exported folder, or a request that its engine does not support."""


class ExportedModel(ABC):
    """A model of an exported folder, with its tokenizer.

    Attributes:
        engine: The library that runs it.
        files: The files by which its folder is known, for messages.
        tokenizer: The tokenizer, of the package `tokenizers`.
    """

    engine: str
    files: str
    tokenizer: Any

    @staticmethod
    @abstractmethod
    def recognises(directory: Path) -> bool:
        """Tells by the names of its files whether a folder is one for this runtime."""

    @classmethod
    @abstractmethod
    def open(cls, directory: Path, threads: int | None) -> Self:
        """Loads the model of a folder; ExportError if it is damaged, or its package is not installed."""

    @abstractmethod
    def translator(self, **settings: Any) -> Translator:
        """Returns a translator of lines with settings of `translate_lines`; ExportError for one it does not have."""

    @abstractmethod
    def difference(self, settings: dict[str, Any]) -> str | None:
        """Describes in one sentence how its search differs from the model's own; None if it does not."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Fingerprint of this model: a hash of the files that it is loaded from."""

    @property
    @abstractmethod
    def num_beams(self) -> int:
        """Number of hypotheses that the model's own search keeps."""

    @property
    @abstractmethod
    def max_source_length(self) -> int:
        """Maximum number of source tokens that are translated."""


def _runtimes() -> list[type[ExportedModel]]:
    return [load("runtime", name) for name in names("runtime")]


def is_exported(path: str | Path) -> bool:
    """Tells whether a folder is an export for ONNX Runtime or CTranslate2."""
    return any(runtime.recognises(Path(path)) for runtime in _runtimes())


def load_exported(path: str | Path, *, threads: int | None = None) -> ExportedModel:
    """Loads a model written by `vanilla-transformer export` for ONNX Runtime or CTranslate2, on a CPU.

    Called with a text or a list of texts, it answers like `pipeline("translation")`.

    Raises:
        ExportError: The folder is no export or is damaged, or its package is not installed.
    """
    for runtime in _runtimes():
        if runtime.recognises(Path(path)):
            return runtime.open(Path(path), threads)
    files = " nor ".join(runtime.files for runtime in _runtimes())
    raise ExportError(f"{path} is not an exported folder: it has neither {files}.")
