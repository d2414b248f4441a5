"""Lines of text in, translations out: one per line, in order, in constant memory."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer import engine
from vanilla_transformer.errors import check_number, refuse_one_text
from vanilla_transformer.model.generation_vanilla_transformer import PaperGenerationMixin
from vanilla_transformer.model.tokenization_vanilla_transformer import plain_text
from vanilla_transformer.translation.loading import check_search, move

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")

# Tokens of a line that are translated.
MAX_SOURCE_LENGTH = 1024
# Source tokens in a batch, and lines that are gathered and sorted by length to make batches: more gives less padding,
# but more work is lost by an interruption.
BATCH_TOKENS = {"cpu": 2048, "accelerator": 16384}
CHUNK_LINES = {"cpu": 2000, "accelerator": 8000}
# Limit on a chunk of any number of lines: splitting text into sub-words takes a hundred times its size.
_CHUNK_CHARACTERS = 1 << 20
# Number of lines up to which translating takes less time than packing the weights.
_FEW_LINES = 8
# Characters of a line per token that is translated of it, up to which it is taken whole.
_CHARACTERS_PER_TOKEN = 16
# Larger batches have a multiple of this many rows. oneDNN generates code for each new number of rows.
_ROWS = 8


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a line.

    Attributes:
        text: The text, without line breaks.
        score: Its score; None if the search gives none.
        ids: Its tokens, `</s>` included.
        alignment: Its links with the source; None if not requested.
    """

    text: str
    score: float | None
    ids: tuple[int, ...] = ()
    alignment: str | None = None


@dataclass(frozen=True)
class Translation:
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


@dataclass(frozen=True)
class LineTranslator:
    """A model with its settings: translates chunks of lines in batches of about equal length."""

    model: Any  # A PreTrainedModel and a GenerationMixin: Python has no type for both.
    tokenizer: PreTrainedTokenizerBase
    batch_tokens: int
    max_source_length: int
    generate_kwargs: dict[str, Any]
    chunk_lines: int

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_tokens: int | None = None,
        max_source_length: int = MAX_SOURCE_LENGTH,
        scores: bool = False,
        **generate_kwargs: Any,
    ) -> "LineTranslator":
        """Makes a translator; model and device choose missing settings; see `translate_lines`."""
        check_number("batch_tokens", batch_tokens, 1)
        check_number("max_source_length", max_source_length, 1)
        check_search(**generate_kwargs)
        generate_kwargs = {name: value for name, value in generate_kwargs.items() if value is not None}
        if not getattr(model.config, "is_encoder_decoder", True):
            raise ValueError(
                f"A {type(model).__name__} does not translate: use `vanilla-transformer predict` or a "
                "pipeline of transformers."
            )
        if getattr(model.config, "positional_encoding", None) == "learned":
            max_source_length = min(max_source_length, model.config.max_position_embeddings)
        if scores:
            ours = isinstance(model, PaperGenerationMixin)
            own_beams = 1 if ours and generate_kwargs.get("do_sample") else model.generation_config.num_beams
            beams = generate_kwargs.get("num_beams") or own_beams or 1
            # The library's search gives the scores of hypotheses only together with those of every step.
            by_the_library = {"output_scores": True} if not ours or 2 * beams > model.config.vocab_size else {}
            # Without a beam there are none.
            asked = {"return_dict_in_generate": True, **by_the_library} if beams > 1 else {}
            generate_kwargs = {**asked, **generate_kwargs}
        kind = "cpu" if model.device.type == "cpu" else "accelerator"
        batch_tokens = batch_tokens or BATCH_TOKENS[kind]
        return cls(model, tokenizer, batch_tokens, max_source_length, generate_kwargs, CHUNK_LINES[kind])

    def translate(self, lines: list[str], progress: Callable[[int], object] = lambda count: None) -> list[Translation]:
        """Returns the translations in the order of the lines, without dropout even for a model in training.

        `progress` receives the lines in proportion to the tokens of each batch: the longest lines come first, so their
        number would predict a much later end.
        """
        configured = getattr(self.model.generation_config, "num_return_sequences", None)
        count = self.generate_kwargs.get("num_return_sequences") or configured or 1
        translations = [Translation((Hypothesis("", 0.0),) * count)] * len(lines)  # Of white space.
        full = [index for index, line in enumerate(lines) if line.strip()]
        tokenized = source_tokens(self.tokenizer, [lines[index] for index in full], self.max_source_length)
        sources = dict(zip(full, tokenized, strict=True))
        all_tokens, tokens, told = sum(len(ids) for ids, _ in tokenized), 0, 0
        with evaluating(self.model), ExitStack() as frozen:
            if len(full) > _FEW_LINES:  # The weights do not change meanwhile.
                for member in getattr(self.model, "members", (self.model,)):
                    frozen.enter_context(engine.frozen(member, copy=False))
            batches = list(self._batches({index: len(ids) for index, (ids, _) in sources.items()}))
            parts = [[sources[index][0] for index in batch] for batch in batches]
            found = run_in_threads(self._generate, parts, self.model.device)
            for batch, hypotheses in zip(batches, found, strict=True):
                for index, best_first in zip(batch, hypotheses, strict=True):
                    ids, is_cut = sources[index]
                    translations[index] = Translation(best_first, is_cut, tuple(ids))
                    tokens += len(ids)
                progress(len(lines) * tokens // all_tokens - told)
                told = len(lines) * tokens // all_tokens
        progress(len(lines) - told)  # All lines are empty.
        return translations

    def _batches(self, lengths: dict[int, int]) -> Iterator[list[int]]:
        """Yields rows of about equal length together, longest first: a lack of memory shows at the start."""
        rows = sorted(lengths, key=lambda index: -lengths[index])
        while rows:
            count = max(1, self.batch_tokens // lengths[rows[0]])
            count -= count % _ROWS if count > _ROWS else 0
            yield rows[:count]
            rows = rows[count:]

    def _generate(self, rows: list[list[int]]) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses for each row of source tokens, best first."""
        inputs = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.model.device)
        output = self.model.generate(**inputs, **self.generate_kwargs)
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        scores = None if isinstance(output, torch.Tensor) else output.get("sequences_scores")
        texts = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        scores = [None] * len(texts) if scores is None else scores.tolist()
        # Padding only follows </s>, and the start token of the decoder is not part of the translation.
        counts = (sequences[:, 1:] != self.tokenizer.pad_token_id).sum(dim=1).tolist()
        hypotheses = [
            Hypothesis(" ".join(text.splitlines()), score, tuple(tokens[1 : count + 1]))
            for text, score, count, tokens in zip(texts, scores, counts, sequences.tolist(), strict=True)
        ]
        width = len(hypotheses) // len(rows)
        return [tuple(hypotheses[start : start + width]) for start in range(0, len(hypotheses), width)]


def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str | None],
    *,
    batch_tokens: int | None = None,
    chunk_lines: int | None = None,
    max_source_length: int = MAX_SOURCE_LENGTH,
    scores: bool = False,
    device: str | torch.device | None = None,
    **generate_kwargs: object,
) -> Iterator[Translation]:
    """Translates each line, in order, like `model.generate`; its own settings apply unless overridden.

    Args:
        model: A model.
        tokenizer: The model's tokenizer.
        lines: Lines without their line ends, in any number; a None from an iterator requests the translations of all
            lines before it at once (see `with_pauses`). Lines of only white space come back empty.
        batch_tokens: Source tokens in a batch, padding included; chosen by device if None.
        chunk_lines: Lines that are gathered and sorted by length to make batches with little padding; chosen by device
            if None.
        max_source_length: Maximum number of tokens translated per line; learned positions may allow fewer.
        scores: Whether to return the scores of the hypotheses of beam search.
        device: A device to which the model is moved first, such as `cuda:1`; by default it stays where it is.
        generate_kwargs: For `model.generate`, such as `num_beams`, `length_penalty` or `num_return_sequences`, or
            `do_sample=True` to draw translations at random; None leaves a setting to the model.

    Raises:
        ValueError: A setting is invalid, a line is not text, or the model does not translate.
    """
    refuse_one_text("lines", lines)
    check_number("chunk_lines", chunk_lines, 1)
    if device is not None:
        for member in getattr(model, "members", (model,)):
            move(member, device)
    translator = LineTranslator.from_model(
        model,
        tokenizer,
        batch_tokens=batch_tokens,
        max_source_length=max_source_length,
        scores=scores,
        **generate_kwargs,
    )
    if isinstance(lines, Sequence) and None in lines:  # A list never pauses: this is a missing line.
        raise ValueError(f"Line {lines.index(None) + 1:,} is None, which is not text.")
    gathered = chunks(lines, chunk_lines or translator.chunk_lines)
    return chain.from_iterable(map(translator.translate, gathered))


def with_pauses(lines: Iterable[str], patience: float) -> Iterator[str | None]:
    """Yields the lines as they arrive, and a None whenever the next has not come within `patience` seconds.

    So a person or a program that waits for an answer before sending the next line gets it, while a fast stream still
    fills whole chunks.
    """
    arrived: queue.Queue[str | Exception | None] = queue.Queue(maxsize=64)

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


def chunks(lines: Iterable[str | None], size: int) -> Iterator[list[str]]:
    """Gathers `size` lines, or as many as have `_CHUNK_CHARACTERS`.

    A chunk is smaller before a pause, at the end, and before a line that could not be read.
    """
    chunk: list[str] = []
    characters = 0
    try:
        for line in lines:
            if line is not None:
                if not isinstance(line, str):
                    raise ValueError(f"{line!r} among the lines is not text.")
                chunk.append(line)
                characters += len(line)
            if chunk and (line is None or len(chunk) == size or characters >= _CHUNK_CHARACTERS):
                yield chunk
                chunk, characters = [], 0
    except (OSError, ValueError):
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def source_tokens(
    tokenizer: PreTrainedTokenizerBase, lines: Sequence[str], max_length: int
) -> list[tuple[list[int], bool]]:
    """Returns the tokens that a model reads of each line, at most `max_length`, and whether the line was cut."""
    if not lines:
        return []
    tokenizer = plain_text(tokenizer)
    found = tokenizer([beginning(tokenizer, line, max_length) for line in lines])["input_ids"]
    # Cut, and still ended by </s>.
    return [([*ids[: max_length - 1], ids[-1]], True) if len(ids) > max_length else (ids, False) for ids in found]


def beginning(tokenizer: PreTrainedTokenizerBase, text: str, tokens: int) -> str:
    """Returns a beginning of a long text, the first `tokens` tokens of which are those of the whole.

    A cut changes the tokens near it alone, so a beginning of twice as many tokens is long enough.
    """
    length = _CHARACTERS_PER_TOKEN * tokens
    while length < len(text) and len(tokenizer(text[:length])["input_ids"]) <= 2 * tokens:
        length *= 2
    return text[:length]


def run_in_threads(work: Callable[[_Part], _Result], parts: list[_Part], device: torch.device) -> Iterator[_Result]:
    """Runs `work` on each part, in order; on a CPU two at a time, each with half of torch's threads.

    Otherwise the single-threaded work of one, such as choosing candidates, would keep the other threads waiting.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads < 2 or len(parts) < 2:
        yield from map(work, parts)
        return
    contexts = [copy_context() for _ in parts]
    try:
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=((threads + 1) // 2,)) as pool:
            # Blocks of `frozen` are those of this thread's context; a context runs in one thread at a time.
            yield from pool.map(lambda context, part: context.run(work, part), contexts, parts)
    finally:
        # Each thread has its own setting, but a new one starts with the last that was set anywhere.
        torch.set_num_threads(threads)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Turns off dropout in its body."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
