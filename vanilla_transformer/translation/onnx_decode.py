"""Translates with ONNX Runtime alone: `python decode.py < in.txt > out.txt` in the export's directory.

Section 6.1's search, or greedy search, as the model's `generate` does it. It needs numpy, onnxruntime and tokenizers,
and the files beside it.

Shapes in names: N sentences · W beam width · V vocabulary · S source.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

# Tokens of a source, `</s>` included, of which no more are translated.
MAX_SOURCE_LENGTH = 1024
# Stands for the log-probability of what cannot be taken.
IMPOSSIBLE = np.float32(-1.0e9)
# Settings that exported models do not have, with all the values by which they change nothing; and bad_words_ids of
# several tokens.
_NOT_HERE: dict[str, tuple[Any, ...]] = {
    "do_sample": (None, False),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "forced_bos_token_id": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "begin_suppress_tokens": (None, []),
    "no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None,),
    "repetition_penalty": (None, 1.0),
    "sequence_bias": (None, {}, []),
}


class Found(NamedTuple):
    """One translation: its tokens without the one that starts the decoder, and in beam search its score."""

    tokens: list[int]
    score: float | None


class Search(NamedTuple):
    """What a search is told; see the model's `generation_config.json`."""

    num_beams: int
    num_return_sequences: int
    length_penalty: float
    google: bool
    early_stopping: bool | str

    def penalty(self, length: Any) -> Any:
        """What a log-probability is divided by: ((5 + |Y|) / 6)^α, or the library's |Y|^α."""
        return np.float32(((5.0 + length) / 6.0 if self.google else length) ** self.length_penalty)


def refuse_settings(settings: dict[str, Any], directory: Path) -> None:
    """Raises ValueError where a model's settings have what exported models do not do."""
    wrong = [name for name, neutral in _NOT_HERE.items() if settings.get(name) not in neutral]
    wrong += ["bad_words_ids"] * any(len(words) != 1 for words in settings.get("bad_words_ids") or ())
    if wrong:
        raise ValueError(
            f"{wrong[0]}={settings[wrong[0]]!r} in {directory / 'generation_config.json'} is not to be had with an "
            "exported model: take it out there, or translate with the model itself."
        )


class Decoder:
    """An exported model with its tokenizer.

    Args:
        directory: What `vanilla-transformer export --to onnx` has written.
        threads: Threads of ONNX Runtime; its own choice where not given.

    Raises:
        ValueError: The model decodes by settings that this search does not have.
    """

    def __init__(self, directory: Path, threads: int | None = None) -> None:
        import onnxruntime  # What else is here is of use without.

        settings: dict[str, Any] = {}
        for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
            settings |= json.loads((directory / name).read_text(encoding="utf-8"))
        self.settings = settings
        refuse_settings(settings, directory)
        self.max_source_length = MAX_SOURCE_LENGTH
        if settings["positional_encoding"] == "learned":
            self.max_source_length = min(MAX_SOURCE_LENGTH, settings["max_position_embeddings"])
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        # Text that spells a special token is only text.
        self.tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))
        self.tokenizer.enable_truncation(self.max_source_length)  # Still ended by its </s>.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        self.encoder, self.first, self.following = (
            onnxruntime.InferenceSession(
                directory / f"{name}.onnx", options, providers=onnxruntime.get_available_providers()
            )
            for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
        )

    def translate(self, texts: list[str], **settings: Any) -> list[str]:
        """The best translations of a batch of texts; those of white space alone come back empty."""
        full = [text for text in texts if text.strip()]
        encoded = self.tokenizer.encode_batch(full)
        for text, tokens in zip(full, encoded, strict=True):
            if tokens.overflowing:
                print(f"warning: too long for the model, and cut: {text[:60]}...", file=sys.stderr)
        found = self.generate([tokens.ids for tokens in encoded], **settings) if full else []
        translations = iter(self.tokenizer.decode_batch([best[0].tokens for best in found]))
        return [next(translations) if text.strip() else "" for text in texts]

    def generate(self, sources: list[list[int]], **settings: Any) -> list[list[Found]]:
        """The translations of each source, best first, as the model's `generate` finds them.

        Args:
            sources: Tokens, each with its `</s>`.
            settings: In the place of the model's own: `num_beams`, `num_return_sequences`, `length_penalty`,
                `length_penalty_type`, `early_stopping`, `max_new_tokens`, `max_length_beyond_source`.
        """
        search = self.search(settings)
        lengths = [len(source) for source in sources]
        source_NS = np.full((len(sources), max(lengths)), self.settings["pad_token_id"], dtype=np.int64)
        for row, source in zip(source_NS, sources, strict=True):
            row[: len(source)] = source
        mask_NS = (np.arange(source_NS.shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
        limits = self.limits(lengths, settings)
        (states,) = self.encoder.run(None, {"input_ids": source_NS, "attention_mask": mask_NS})
        decoding = _Decoding(self.first, self.following, states, mask_NS)
        if search.num_beams == 1:
            return self._greedy_search(decoding, limits)
        return self._beam_search(decoding, limits, search)

    def search(self, given: dict[str, Any]) -> Search:
        """The settings of a search, from what is given and what the model has.

        Raises:
            ValueError: They cannot be searched by.
        """

        def setting(name: str, otherwise: Any) -> Any:
            value = given.get(name)
            value = self.settings.get(name) if value is None else value
            return otherwise if value is None else value

        beams, google = setting("num_beams", 1), setting("length_penalty_type", "huggingface") == "google"
        search = Search(
            num_beams=beams,
            num_return_sequences=setting("num_return_sequences", 1),
            length_penalty=setting("length_penalty", 0.6 if google else 1.0),
            google=google,
            early_stopping=setting("early_stopping", "never" if google else False),
        )
        if search.num_return_sequences > beams:
            raise ValueError(f"{search.num_return_sequences} translations of a line need num_beams as large.")
        if beams > 1 and self._candidates(search) > self.settings["vocab_size"]:
            raise ValueError(f"num_beams={beams} is too large for a vocabulary of {self.settings['vocab_size']}.")
        return search

    def limits(self, lengths: list[int], given: dict[str, Any]) -> list[int]:
        """How many tokens each translation may have."""
        settings = self.settings
        longest, length = settings.get("max_new_tokens"), settings.get("max_length")
        beyond = settings.get("max_length_beyond_source")
        if length == 20 and beyond is not None:
            length = None  # Trainers write that there unasked.
        if given.get("max_new_tokens") is not None:
            longest = given["max_new_tokens"]
        elif given.get("max_length_beyond_source") is not None:
            longest = length = None
            beyond = given["max_length_beyond_source"]
        if longest is None and length is None and beyond is not None:
            limits = [one + beyond for one in lengths]
        else:
            limits = [longest or (length or 21) - 1] * len(lengths)
        if settings["positional_encoding"] == "learned":
            limits = [min(limit, settings["max_position_embeddings"]) for limit in limits]
        return [max(limit, 1) for limit in limits]

    def _candidates(self, search: Search) -> int:
        """Continuations of a sentence that a step ranks."""
        return max(2, 1 + len(self._ends())) * search.num_beams

    def _ends(self) -> set[int]:
        return set(np.atleast_1d(self.settings["eos_token_id"]).tolist())

    def _change(self, scores_RV: np.ndarray, is_last: bool) -> np.ndarray:
        """What some models have besides: tokens that they never write, and an end that comes at the limit."""
        never = [word[0] for word in self.settings.get("bad_words_ids") or ()]
        scores_RV[:, [*never, *(self.settings.get("suppress_tokens") or ())]] = -np.inf
        forced = self.settings.get("forced_eos_token_id")
        if forced is not None and is_last:
            scores_RV[:] = -np.inf
            scores_RV[:, np.atleast_1d(forced)] = 0
        return scores_RV

    def _greedy_search(self, decoding: "_Decoding", limits: list[int]) -> list[list[Found]]:
        """The likeliest token, again and again, until each sentence ends."""
        ends, searching = self._ends(), list(range(len(limits)))
        found: list[list[int]] = [[] for _ in limits]
        tokens = [self.settings["decoder_start_token_id"]] * len(limits)
        for length in range(1, max(limits) + 1):
            tokens = self._change(decoding.step(tokens), length == max(limits)).argmax(-1).tolist()
            for sentence, token in zip(searching, tokens, strict=True):
                found[sentence].append(token)
            left = [n for n, sentence in enumerate(searching) if tokens[n] not in ends and length < limits[sentence]]
            if len(left) < len(searching):
                searching, tokens = [searching[n] for n in left], [tokens[n] for n in left]
                decoding.reorder(left)
            if not left:
                break
        return [[Found(tokens, None)] for tokens in found]

    def _beam_search(self, decoding: "_Decoding", limits: list[int], search: Search) -> list[list[Found]]:
        """Section 6.1: the best hypotheses of each sentence."""
        width, ends, count = search.num_beams, self._ends(), self._candidates(search)
        # Where scores never rise, what is returned is certain before all W hypotheses are.
        certain = search.early_stopping == "never" and self.settings.get("forced_eos_token_id") is None
        horizons = limits if certain else [max(limits)] * len(limits)
        counted = search.num_return_sequences if certain else width
        sentences = [
            _Sentence(limit, float(search.penalty(float(horizon))), counted, search)
            for limit, horizon in zip(limits, horizons, strict=True)
        ]
        searching, length, tokens = sentences, 0, [self.settings["decoder_start_token_id"]] * len(sentences)
        while searching:
            length += 1
            log_p_RV = self._change(log_softmax(decoding.step(tokens)), length == max(limits))
            rows = len(log_p_RV) // len(searching)
            scores_R1 = np.array([[score] for s in searching for score, _ in s.running], dtype=np.float32)
            scores_NC = (log_p_RV + scores_R1).reshape(len(searching), -1)
            best = np.argpartition(-scores_NC, count - 1, axis=-1)[:, :count]
            best = np.take_along_axis(best, np.argsort(-np.take_along_axis(scores_NC, best, -1), kind="stable"), -1)
            values, left, parents, tokens = np.take_along_axis(scores_NC, best, -1), [], [], []
            for number, sentence in enumerate(searching):
                places = [divmod(place, log_p_RV.shape[1]) for place in best[number].tolist()]
                if sentence.advance(values[number], places, length, ends):
                    left.append(sentence)
                    parents += [number * rows + parent for parent in sentence.parents]
                    tokens += [path[-1] for _, path in sentence.running]
            searching = left
            decoding.reorder(parents)
        return [
            [Found(list(path), float(score)) for score, path in sentence.finished[: search.num_return_sequences]]
            for sentence in sentences
        ]


class _Sentence:
    """The hypotheses of one sentence, best first, each with its score and its tokens."""

    def __init__(self, longest: int, bound_penalty: float, counted: int, search: Search) -> None:
        self.longest, self.bound_penalty, self.counted, self.search = longest, bound_penalty, counted, search
        self.running: list[tuple[Any, tuple[int, ...]]] = [(np.float32(0), ())]
        self.finished: list[tuple[Any, tuple[int, ...]]] = [(IMPOSSIBLE, ())] * search.num_beams
        self.parents: list[int] = []

    def advance(self, scores: np.ndarray, places: list[tuple[int, int]], length: int, ends: set[int]) -> bool:
        """Takes the best continuations, best first, as scores, parents and tokens; whether the search goes on."""
        width = self.search.num_beams
        paths = [(*self.running[parent][1], token) for parent, token in places]
        ended = [length >= self.longest or token in ends for _, token in places]
        if any(ended[:width]):
            penalty = self.search.penalty(float(length))
            ending = [(scores[i] / penalty, paths[i]) for i in range(width) if ended[i]]
            self.finished = sorted(self.finished + ending, key=_score, reverse=True)[:width]
        left = [(scores[i] + IMPOSSIBLE if end else scores[i], i) for i, end in enumerate(ended)]
        left = sorted(left, key=_score, reverse=True)[:width]
        self.running = [(score, paths[i]) for score, i in left]
        self.parents = [places[i][0] for _, i in left]
        return not all(ended) and self._may_improve(length)

    def _may_improve(self, length: int) -> bool:
        """Whether what runs may still change what is returned; section 6.1 stops as soon as nothing can ("never")."""
        search = self.search
        if any(not path for _, path in self.finished[: self.counted]):
            return True
        if search.early_stopping is True:
            return False
        exact = search.early_stopping == "never" and search.length_penalty > 0
        penalty = np.float32(self.bound_penalty) if exact else search.penalty(float(length))
        return bool(self.running[0][0] / penalty > self.finished[self.counted - 1][0])


def _score(hypothesis: tuple[Any, Any]) -> Any:
    return hypothesis[0]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logits to log-probabilities over the last dimension."""
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class _Decoding:
    """Keys and values of some hypotheses, a row for each: their newest tokens in, logits of the next out."""

    def __init__(self, first: Any, following: Any, states: np.ndarray, mask_NS: np.ndarray) -> None:
        self._first, self._following, self._states, self._mask_NS = first, following, states, mask_NS
        self._past: dict[str, np.ndarray] = {}
        self._sources = list(range(len(mask_NS)))

    def step(self, tokens: list[int]) -> np.ndarray:
        """The newest token of each row to logits, (rows, vocabulary)."""
        session = self._following if self._past else self._first
        inputs = {
            "input_ids": np.array(tokens, dtype=np.int64)[:, None],
            "encoder_attention_mask": self._mask_NS,
            **(self._past or {"encoder_hidden_states": self._states}),
        }
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        self._past |= {name.replace("present", "past_key_values", 1): outputs[name] for name in names[1:]}
        return np.asarray(outputs["logits"][:, -1])

    def reorder(self, rows: list[int]) -> None:
        """Continues with these rows, each as often as it is named."""
        if rows == list(range(len(self._sources))):
            return
        sources = [self._sources[row] for row in rows]
        same = sources == self._sources
        self._past = {
            name: value if same and ".encoder." in name else value[rows] for name, value in self._past.items()
        }
        if not same:
            self._mask_NS, self._sources = self._mask_NS[rows], sources


def batches(lines: Iterable[str], size: int = 32) -> Iterator[list[str]]:
    """So many lines together, without their ends."""
    batch: list[str] = []
    for line in lines:
        batch.append(line.rstrip("\n"))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> None:
    """Standard input to standard output, line by line."""
    parser = argparse.ArgumentParser(description="Translates standard input to standard output, line by line.")
    parser.add_argument("--num-beams", type=int, help="1 for greedy search (default: the model's)")
    parser.add_argument("--length-penalty", type=float, help="exponent (default: the model's)")
    settings = vars(parser.parse_args())
    if settings["num_beams"] is not None and settings["num_beams"] < 1:
        parser.error("--num-beams must be at least 1.")
    decoder = Decoder(Path(__file__).parent)
    with (
        open(sys.stdin.fileno(), encoding="utf-8", newline="\n", closefd=False) as lines,
        open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as output,
    ):
        for batch in batches(lines):
            for translation in decoder.translate(batch, **settings):
                print(" ".join(translation.splitlines()), file=output)


if __name__ == "__main__":
    main()
