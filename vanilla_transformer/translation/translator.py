"""Lines of text in, translations out: one per line, in order, in constant memory."""

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, overload

from vanilla_transformer.errors import ModelError, SettingError, check_number, check_texts
from vanilla_transformer.graph.session import Session, open_session
from vanilla_transformer.graph.settings import check_search
from vanilla_transformer.machine import has_accelerator
from vanilla_transformer.translation.tokenizer_file import TokenizerFile, source_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vanilla_transformer.translation.live_models import GenerateSearch, LibraryTokenizer

    Found = tuple[Session | GenerateSearch, TokenizerFile | LibraryTokenizer]

logger = logging.getLogger(__name__)

Precision = Literal["auto", "float32", "bfloat16", "int8"]
# Tokens of a line that are translated.
MAX_SOURCE_LENGTH = 1024
# Source tokens in a batch, and lines that are gathered and sorted by length to make batches: more gives less padding,
# but more work is lost by an interruption.
BATCH_TOKENS = {"cpu": 2048, "accelerator": 16384}
CHUNK_LINES = {"cpu": 2000, "accelerator": 8000}
# Limit on a chunk of any number of lines: splitting text into sub-words takes a hundred times its size.
_CHUNK_CHARACTERS = 1 << 20
# The files of a model on the Hub that the ONNX graph needs.
_FILES = ("config.json", "generation_config.json", "tokenizer*.json", "model.safetensors")
# Larger batches have a multiple of this many rows.
_ROWS = 8


class Pause(Enum):
    """A mark between lines: translate all lines before it now, because the next line is not there yet."""

    PAUSE = "pause"


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a line.

    Attributes:
        text: The text, without line breaks.
        score: Its score; None if the search gives none, and of an empty line.
        ids: Its tokens, `</s>` included.
        alignment: Its links with the source; None if not requested.
    """

    text: str
    score: float | None
    ids: tuple[int, ...] = ()
    alignment: str | None = None


@dataclass(frozen=True)
class TranslationResult:
    """The result for one line.

    Attributes:
        hypotheses: Its translations, best first.
        truncated: Whether the line had to be cut to be translated.
        source_ids: The tokens that were translated; none for an empty line.
    """

    hypotheses: tuple[Hypothesis, ...]
    truncated: bool = False
    source_ids: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The best hypothesis, without line breaks."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float | None:
        """Beam search's score of the best hypothesis: its log-probability divided by the length penalty."""
        return self.hypotheses[0].score


class Translator:
    """Translates text with the weights that the model has when the translator is made.

    On a CPU, the paper's search runs as one ONNX graph in ONNX Runtime. If the model is a directory, torch is not
    loaded. If the ONNX graph does not support the model or a setting, the model's own `generate` is used. Several
    threads may use a translator at once::

        translator = Translator("my-model")
        translator("A dog runs.").text
        for translation in translator(open("in.txt")):
            print(translation.text, translation.score)

    Args:
        model: A directory, a Hub id, several of these, which decode together as an ensemble, or a loaded model.
        tokenizer: Of a loaded model.
        precision: `float32`, `int8` (matrices of 8 bits, on a processor), `bfloat16` (decoded by torch), or `auto`:
            int8 on a processor from a width of 256 on, float32 below; or else the fastest type that loses nothing
            measurable. A loaded model keeps its type.
        device: As torch names it, such as `cpu` or `cuda:1` (default: an accelerator if there is one, or where a
            loaded model is).
        batch_tokens: Source tokens in a batch, padding included; chosen by device if None.
        max_source_length: Maximum number of tokens translated per line; learned positions may allow fewer.
        settings: Of the search, as arguments of `generate`, such as `num_beams`, `length_penalty`,
            `num_return_sequences` or `max_new_tokens`, or `do_sample=True` to draw translations at random; None leaves
            a setting to the model.

    Attributes:
        search: What decodes.
        tokenizer: Text to tokens, and back.

    Raises:
        ModelError: There is no such model, or it does not translate.
        ValueError: A setting is invalid.
    """

    def __init__(
        self,
        model: "str | os.PathLike[str] | Sequence[str] | PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        precision: Precision = "auto",
        device: str | None = None,
        batch_tokens: int | None = None,
        max_source_length: int = MAX_SOURCE_LENGTH,
        **settings: Any,
    ) -> None:
        check_number("batch_tokens", batch_tokens, 1)
        check_number("max_source_length", max_source_length, 1)
        if precision not in get_args(Precision):
            raise SettingError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}.")
        # Numbers and arrays of NumPy and torch become Python's.
        settings = {name: one.tolist() if hasattr(one, "tolist") else one for name, one in settings.items()}
        check_search(**settings)
        found: Found
        if tokenizer is not None:
            from vanilla_transformer.translation.live_models import live_search

            found = live_search(model, tokenizer, precision, device, **settings)
        elif isinstance(model, str | os.PathLike | Sequence):
            names = [os.fspath(model)] if isinstance(model, str | os.PathLike) else list(map(os.fspath, model))
            found = _open_search(names, precision=precision, device=device, **settings)
        else:
            raise ValueError(f"A {type(model).__name__} is translated with together with its tokenizer: give both.")
        self.search, self.tokenizer = found
        self.batch_tokens = batch_tokens or BATCH_TOKENS[self.search.device]
        self.chunk_lines = CHUNK_LINES[self.search.device]
        self.max_source_length = min(max_source_length, self.search.max_positions or max_source_length)
        self.num_beams, self.precision = self.search.num_beams, self.search.precision

    def __reduce__(self) -> NoReturn:
        """Raises TypeError, because a session of ONNX Runtime belongs to its process."""
        raise TypeError("A Translator cannot be pickled: make one in each process.")

    @overload
    def __call__(self, lines: str) -> "TranslationResult": ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, lines: Iterable[str | Pause]) -> Iterator["TranslationResult"]: ...
    def __call__(self, lines: str | Iterable[str | Pause]) -> "TranslationResult | Iterator[TranslationResult]":
        """Translates a text, or each of several lines, in order and as they are asked for.

        Args:
            lines: A text, or any number of lines. Line ends are not translated. A `Pause` requests the translations
                of all lines before it at once (see `with_pauses`). The translation of white space is empty.

        Raises:
            ValueError: A line is not text. For a list, this is found before any line is translated.
        """
        if isinstance(lines, str):
            return self.translate([without_line_end(lines)])[0]
        check_texts("lines", lines)
        for number, line in enumerate(lines if isinstance(lines, Sequence) else (), start=1):
            _check_line(number, line)
        return chain.from_iterable(map(self.translate, chunks(lines, self.chunk_lines)))

    def translate(
        self, lines: list[str], progress: Callable[[int], object] = lambda count: None
    ) -> list["TranslationResult"]:
        """Returns the translations of lines, in batches of about equal length.

        `progress` receives the lines in proportion to the tokens of each batch: the longest lines come first, so their
        number would predict a much later end.
        """
        nothing = TranslationResult((Hypothesis("", None),) * self.search.num_return_sequences)  # Of white space.
        translations = [nothing] * len(lines)
        "\n".join(lines).encode()  # Names half of a surrogate pair, which a tokenizer refuses without a word on it.
        full = [index for index, line in enumerate(lines) if line.strip()]
        tokenized = source_tokens(self.tokenizer.encode, [lines[index] for index in full], self.max_source_length)
        all_tokens, tokens, reported = sum(len(ids) for ids, _ in tokenized), 0, 0
        batches = list(batches_of_rows([ids for ids, _ in tokenized], self.batch_tokens))
        rows = [[tokenized[place][0] for place in batch] for batch in batches]
        for batch, found in zip(batches, self._found(rows), strict=True):
            for place, best_first in zip(batch, found, strict=True):
                ids, is_cut = tokenized[place]
                translations[full[place]] = TranslationResult(best_first, is_cut, tuple(ids))
                tokens += len(ids)
            progress(len(lines) * tokens // all_tokens - reported)
            reported = len(lines) * tokens // all_tokens
        progress(len(lines) - reported)  # All lines are empty.
        return translations

    def _found(self, batches: list[list[list[int]]]) -> Iterator[list[tuple["Hypothesis", ...]]]:
        """Yields the hypotheses of each batch, in order; several batches are searched side by side."""
        workers = min(self.search.side_by_side, len(batches))
        if workers < 2:
            yield from map(self._hypotheses, batches)
            return
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(self._hypotheses, batches)

    def _hypotheses(self, rows: list[list[int]]) -> list[tuple["Hypothesis", ...]]:
        found = self.search.search(rows)
        texts = iter(self.tokenizer.decode([one.tokens for some in found for one in some]))
        return [
            tuple(Hypothesis(" ".join(next(texts).splitlines()), one.score, tuple(one.tokens)) for one in some)
            for some in found
        ]


def batches_of_rows(rows: Sequence[Sized], batch_tokens: int) -> Iterator[list[int]]:
    """Yields the places of rows of about equal length together, longest first: a lack of memory shows at the start."""
    places = sorted(range(len(rows)), key=lambda place: -len(rows[place]))
    while places:
        count = max(1, batch_tokens // max(1, len(rows[places[0]])))
        count -= count % _ROWS if count > _ROWS else 0
        yield places[:count]
        places = places[count:]


def with_pauses(lines: Iterable[str], patience: float) -> Iterator[str | Pause]:
    """Yields the lines as they arrive, and a pause whenever the next has not come within `patience` seconds.

    A person or a program that waits for an answer before sending the next line receives it, while a fast stream still
    fills whole chunks.
    """
    arrived: queue.Queue[tuple[str] | Exception | None] = queue.Queue(maxsize=64)
    is_closed = threading.Event()

    def read() -> None:
        try:
            for line in lines:
                arrived.put((line,))
                if is_closed.is_set():
                    return
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            try:
                found = arrived.get(timeout=patience)
            except queue.Empty:
                yield Pause.PAUSE
                found = arrived.get()
            if found is None:
                return
            if isinstance(found, Exception):
                raise found
            yield found[0]
    finally:
        is_closed.set()
        while not arrived.empty():  # The thread may be waiting for a free place.
            arrived.get()


def without_line_end(line: str) -> str:
    """Returns a line without its line end."""
    return line.removesuffix("\n").removesuffix("\r")


def _check_line(number: int, line: object) -> None:
    """Raises ValueError if a line, counted from 1, is not text."""
    if not isinstance(line, str):
        raise ValueError(f"Line {number:,} is {line!r}, which is not text.")


def chunks(lines: Iterable[str | Pause], size: int) -> Iterator[list[str]]:
    """Gathers `size` lines, or as many as have `_CHUNK_CHARACTERS`.

    A chunk is smaller before a pause, at the end, and before a line that could not be read.
    """
    chunk: list[str] = []
    number, characters = 0, 0
    try:
        for line in lines:
            if not isinstance(line, Pause):
                number += 1
                _check_line(number, line)
                chunk.append(without_line_end(line))
                characters += len(line)
            if chunk and (isinstance(line, Pause) or len(chunk) == size or characters >= _CHUNK_CHARACTERS):
                yield chunk
                chunk, characters = [], 0
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _open_search(models: Sequence[str], *, precision: str, device: str | None, **settings: Any) -> "Found":
    """Loads a model, or an ensemble of several, with what decodes it fastest, and its tokenizer; see `Translator`."""
    # Whether there is an accelerator that torch can use is asked of torch.
    on_cpu = device == "cpu" or (device is None and not has_accelerator())
    logged = False
    if on_cpu and len(models) == 1 and precision != "bfloat16":
        path = Path(models[0]).expanduser()
        if not path.is_dir():
            from vanilla_transformer.loading.files import from_hub

            path = from_hub(models[0], _FILES)
        tokenizer = TokenizerFile.of(path)
        try:
            if tokenizer is None:
                raise ModelError("its tokenizer")
            session = open_session(path, settings, precision)
            if tokenizer.vocab_size > session.vocab_size:
                raise ModelError(f"a tokenizer with {tokenizer.vocab_size:,} tokens")
            return session, tokenizer
        except ModelError as reason:
            logger.info("%s is loaded by transformers, because the ONNX graph does not support %s.", models[0], reason)
            logged = True
    from vanilla_transformer.translation.live_models import load_search

    return load_search(models, precision=precision, device=device, logged=logged, **settings)
