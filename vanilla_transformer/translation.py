"""Lines of text in, translations out: one for each line, in order, in constant memory."""

import queue
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import vanilla_transformer.registration  # noqa: F401  the Auto classes have to know the model
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig


class ModelNotFoundError(OSError):
    """There is no model where one was asked for."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a line; the score is None where the search gives none, `tokens` counts its `</s>`."""

    text: str
    score: float | None
    tokens: int


@dataclass(frozen=True)
class Translation:
    """What became of one line: its hypotheses, best first, and whether the line had to be cut to be translated."""

    hypotheses: tuple[Hypothesis, ...]
    truncated: bool = False

    @property
    def text(self) -> str:
        """The best hypothesis, without line breaks."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float | None:
        """Beam search's score of the best hypothesis: its log-probability over the length penalty."""
        return self.hypotheses[0].score


_NOTHING_TO_TRANSLATE = Translation((Hypothesis("", 0.0, 0),))


def load_model(
    path: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads model and tokenizer from a directory or the Hub, in float32 on the best device there is unless told.

    Raises:
        ModelNotFoundError: There is no model of that name.
    """
    with _not_found(path, "config.json"):
        model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=dtype or torch.float32)
    return model.to(device or _best_device()).eval(), load_tokenizer(path)


def load_config(path: str | Path) -> VanillaTransformerConfig:
    """Loads the configuration of a model from a directory or the Hub.

    Raises:
        ModelNotFoundError: There is no model of that name.
        ValueError: The model is of another type.
    """
    with _not_found(path, "config.json"):
        config = AutoConfig.from_pretrained(path)
    if not isinstance(config, VanillaTransformerConfig):
        raise ValueError(f"{path} is a model of the type {config.model_type}, not vanilla_transformer.")
    return config


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a model, or one on its own, from a directory or the Hub."""
    with _not_found(path, "tokenizer_config.json"):
        return AutoTokenizer.from_pretrained(path)


@contextmanager
def _not_found(path: str | Path, file: str) -> Iterator[None]:
    """Says in one sentence that there is no model, before and in place of a search of the Hub that cannot succeed."""
    if Path(path).is_dir():
        if not Path(path, file).is_file():
            raise ModelNotFoundError(f"{path} is not a model directory: it has no {file}.")
    elif not re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        raise ModelNotFoundError(f"There is no model directory {path}.")
    try:
        yield
    except OSError as error:
        if Path(path).is_dir():
            raise
        raise ModelNotFoundError(f"There is no directory {path}, and the Hub gives no model of that name.") from error


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str | None],
    *,
    batch_tokens: int | None = None,
    window: int = 2000,
    max_source_length: int = 1024,
    progress: Callable[[int], object] | None = None,
    **generate_kwargs: Any,
) -> Iterator[Translation]:
    """Translates each line, in order, as `model.generate` does with its own settings unless told otherwise.

    Args:
        lines: Lines without their line ends, as many as there are; a None among them asks for the translations of
            all lines before it at once (see `with_pauses`). Lines of white space alone come back empty.
        batch_tokens: Source tokens in a batch, padding included; chosen by device where not given.
        window: Lines that are gathered and sorted by length to make batches with little padding.
        max_source_length: Tokens of a line that are translated; learned positions may end before.
        progress: Called with the number of lines done after each batch.
        generate_kwargs: For `model.generate`, such as `num_beams`, `length_penalty` or `num_return_sequences`;
            beam search gives scores with `output_scores=True`, at a cost in memory.
    """
    if getattr(model.config, "positional_encoding", None) == "learned":
        max_source_length = min(max_source_length, model.config.max_position_embeddings)
    batch_tokens = batch_tokens or (2048 if model.device.type == "cpu" else 16384)
    translator = _Translator(model, tokenizer, batch_tokens, max_source_length, generate_kwargs)
    was_training = model.training
    model.eval()
    try:
        for gathered in _windows(lines, window):
            yield from translator.translate(gathered, progress or (lambda count: None))
    finally:
        model.train(was_training)


def with_pauses(lines: Iterable[str], patience: float) -> Iterator[str | None]:
    """The lines as they arrive, and a None each time the next has not come within `patience` seconds.

    A person or a program that waits for its answer before it sends the next line gets it, and a fast stream still
    fills whole windows.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(maxsize=1024)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = arrived.get(timeout=patience)
        except queue.Empty:
            yield None
            line = arrived.get()
        if line is None:
            return
        if isinstance(line, Exception):
            raise line
        yield line


def _windows(lines: Iterable[str | None], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines, or of fewer before a pause, at the end, and before a line that could not be read."""
    window: list[str] = []
    try:
        for line in lines:
            if line is not None:
                window.append(line)
            if window and (line is None or len(window) == size):
                yield window
                window = []
    except (OSError, ValueError):
        if window:
            yield window
        raise
    if window:
        yield window


@dataclass(frozen=True)
class _Translator:
    """A model with its settings: translates windows of lines in batches of about equal length."""

    model: Any  # A PreTrainedModel that is a GenerationMixin as well: Python has no name for both.
    tokenizer: PreTrainedTokenizerBase
    batch_tokens: int
    max_source_length: int
    generate_kwargs: dict[str, Any]

    def translate(self, lines: list[str], progress: Callable[[int], object]) -> list[Translation]:
        """The translations in the order of the lines."""
        translations = [_NOTHING_TO_TRANSLATE] * len(lines)
        full = [index for index, line in enumerate(lines) if line.strip()]
        progress(len(lines) - len(full))
        if not full:
            return translations
        ids = dict(zip(full, self.tokenizer([lines[index] for index in full])["input_ids"], strict=True))
        too_long = {index for index in full if len(ids[index]) > self.max_source_length}
        for index in too_long:
            # Cut, and still ended by its </s>.
            ids[index] = [*ids[index][: self.max_source_length - 1], ids[index][-1]]
        for batch in self._batches(ids):
            hypotheses = self._generate([ids[index] for index in batch])
            for index, best_first in zip(batch, hypotheses, strict=True):
                translations[index] = Translation(best_first, truncated=index in too_long)
            progress(len(batch))
        return translations

    def _batches(self, ids: dict[int, list[int]]) -> Iterator[list[int]]:
        """Rows of about equal length together, the longest first: what does not fit into memory shows at the start."""
        batch: list[int] = []
        for index in sorted(ids, key=lambda index: -len(ids[index])):
            if batch and (len(batch) + 1) * len(ids[batch[0]]) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        yield batch

    def _generate(self, rows: list[list[int]]) -> list[tuple[Hypothesis, ...]]:
        """The hypotheses for each row of source tokens, best first."""
        inputs = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.model.device)
        output = self.model.generate(**inputs, **self.generate_kwargs, return_dict_in_generate=True)
        texts = self.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        scores = output.get("sequences_scores")
        scores = [None] * len(texts) if scores is None else scores.tolist()
        # Padding follows </s> alone, and the token that starts the decoder is none of the translation's.
        tokens = (output.sequences[:, 1:] != self.tokenizer.pad_token_id).sum(dim=1).tolist()
        hypotheses = [
            Hypothesis(_one_line(text), score, count) for text, score, count in zip(texts, scores, tokens, strict=True)
        ]
        width = len(hypotheses) // len(rows)
        return [tuple(hypotheses[start : start + width]) for start in range(0, len(hypotheses), width)]


def _one_line(text: str) -> str:
    """The text with a space for every line break that any reader of lines may see in it."""
    return " ".join(text.splitlines())
