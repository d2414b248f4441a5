"""Models exported by `vanilla-transformer export --to onnx` and `--to ctranslate2`: they translate without torch."""

import fnmatch
import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from vanilla_transformer.cores import own_threads
from vanilla_transformer.fingerprints import fingerprint_file, fingerprint_settings
from vanilla_transformer.translation.exported import ExportedModel, ExportError
from vanilla_transformer.translation.lines import (
    MAX_SOURCE_LENGTH,
    NO_TRANSLATION,
    Hypothesis,
    Translation,
    check_lines,
    check_search,
    one_line,
)

# Lines that are gathered and sorted by length to make batches, and source tokens in a batch.
CHUNK_LINES = 2000
BATCH_TOKENS = 2048
# Settings that a search accepts; all others are the engine's own.
SETTINGS = frozenset({"num_beams", "num_return_sequences", "length_penalty", "max_length_beyond_source"})
# Files that an export is loaded from.
_FILES = ("*.json", "*.onnx", "*.onnx.data", "model.bin")
# Settings that exported models do not support, with all the values that have no effect; and bad_words_ids of several
# tokens.
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
# The whole search.
GRAPH = "translate.onnx"
# The graph of older exports.
_OLD_GRAPH = "encoder_model.onnx"
_MISSING = "The package {} is not installed: run `pip install 'vanilla-transformer[export]'`."


class _Model(ExportedModel):
    """A model in an exported folder, with its tokenizer: texts in, translations out.

    Called with a text or a list of texts, it answers like `pipeline("translation")`.

    Attributes:
        settings: Search settings, from the model's `generation_config.json`.
        needed: Files without which it does not translate.
    """

    needed: tuple[str, ...] = ("tokenizer.json", "tokenizer_config.json")

    @abstractmethod
    def __init__(self, directory: Path, threads: int | None) -> None:
        self.directory = directory
        self.settings: dict[str, Any] = {}

    @abstractmethod
    def search(
        self, sources: list[list[int]], batch_tokens: int, progress: Callable[[int], object], settings: dict[str, Any]
    ) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each source, best first; `progress` receives the number of sources per batch."""

    @classmethod
    def open(cls, directory: Path, threads: int | None) -> Self:
        """Loads the model of a folder."""
        for name in cls.needed:
            if not (directory / name).is_file():
                raise ExportError(f"{directory} has no {name}, which it needs to translate: export the model again.")
        try:
            return cls(directory, threads)
        except ModuleNotFoundError as error:
            raise ExportError(_MISSING.format(error.name)) from error
        except ExportError:
            raise
        except Exception as error:  # Engines and tokenizers raise classes of their own, or plain ones.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExportError(f"{directory} cannot be loaded: {reason}") from error

    def translator(self, **settings: Any) -> "ExportedTranslator":
        """Returns a translator of lines."""
        return ExportedTranslator.from_model(self, **settings)

    @property
    def num_beams(self) -> int:
        """Number of hypotheses that the model's own search keeps."""
        return int(self.settings.get("num_beams") or 1)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the package `tokenizers`, which does not cut text."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.directory / "tokenizer.json"))
        # Text that spells a special token is plain text.
        tokenizer.encode_special_tokens = bool(
            _settings(self.directory, "tokenizer_config").get("split_special_tokens")
        )
        return tokenizer

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this model: a hash of the files that it is loaded from."""
        files = [path for path in sorted(self.directory.iterdir()) if _is_loaded(path)]
        return fingerprint_settings([[path.name, fingerprint_file(path)] for path in files])

    def __call__(self, texts: str | list[str], **settings: Any) -> Any:
        """Answers like `pipeline("translation")`: `[{"translation_text": ...}]`, for one text or several."""
        translator = self.translator(**settings)
        given = [texts] if isinstance(texts, str) else list(texts)
        found = [
            [{"translation_text": hypothesis.text} for hypothesis in translation.hypotheses]
            for translation in translator.translate(given)
        ]
        if isinstance(texts, str):
            return found[0]
        return [records[0] for records in found] if all(len(records) == 1 for records in found) else found


@dataclass(frozen=True)
class ExportedTranslator:
    """An exported model with its settings: translates chunks of lines, like `LineTranslator` for other models."""

    model: _Model
    batch_tokens: int
    max_source_length: int
    settings: dict[str, Any]
    chunk_lines: int = CHUNK_LINES

    @classmethod
    def from_model(
        cls,
        model: _Model,
        *,
        batch_tokens: int | None = None,
        max_source_length: int = MAX_SOURCE_LENGTH,
        scores: bool = False,
        **settings: Any,
    ) -> "ExportedTranslator":
        """Makes a translator; the model chooses missing settings. With a beam there are always scores.

        Raises:
            ExportError: An exported model does not have one of the settings.
            SettingError: A setting is invalid.
        """
        unknown = sorted(settings.keys() - SETTINGS)
        if unknown:
            raise ExportError(
                f"{unknown[0]} is not for an exported model, which takes {', '.join(sorted(SETTINGS))}: "
                "translate with the model itself."
            )
        check_search(batch_tokens=batch_tokens, max_source_length=max_source_length, **settings)
        limit = min(max_source_length, model.max_source_length)
        return cls(model, batch_tokens or BATCH_TOKENS, limit, settings)

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Returns the translations in the order of the lines; `progress` receives the number of lines per batch."""
        check_lines(lines)
        progress = progress or (lambda count: None)
        full = [index for index, line in enumerate(lines) if line.strip()]
        progress(len(lines) - len(full))
        translations = [Translation(NO_TRANSLATION * self._hypotheses)] * len(lines)
        if not full:
            return translations
        encoded = self.model.tokenizer.encode_batch([lines[index] for index in full])
        ids, limit = [text.ids for text in encoded], self.max_source_length
        # Cut, and still ended by </s>.
        sources = [[*one[: limit - 1], one[-1]] if len(one) > limit else one for one in ids]
        found = self.model.search(sources, self.batch_tokens, progress, self.settings)
        for index, one, hypotheses in zip(full, ids, found, strict=True):
            translations[index] = Translation(hypotheses, truncated=len(one) > limit)
        return translations

    @property
    def _hypotheses(self) -> int:
        """The number of hypotheses per line."""
        own = self.model.settings.get("num_return_sequences")
        return int(self.settings.get("num_return_sequences") or own or 1)


def refuse_settings(settings: dict[str, Any], directory: Path) -> None:
    """Raises ValueError if a model's settings include one that exported models do not support."""
    wrong = [name for name, neutral in _NOT_HERE.items() if settings.get(name) not in neutral]
    wrong += ["bad_words_ids"] * any(len(words) != 1 for words in settings.get("bad_words_ids") or ())
    if wrong:
        raise ValueError(
            f"{wrong[0]}={settings[wrong[0]]!r} in {directory / 'generation_config.json'} is not available with an "
            "exported model: take it out there, or translate with the model itself."
        )


def _is_loaded(path: Path) -> bool:
    return path.is_file() and any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _FILES)


def _settings(directory: Path, name: str) -> dict[str, Any]:
    settings = json.loads((directory / f"{name}.json").read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise ExportError(f"{directory / name}.json is not a JSON object: export the model again.")
    return settings


class OnnxModel(_Model):
    """A single graph that runs the whole search."""

    engine, files = "ONNX Runtime", GRAPH

    def __init__(self, directory: Path, threads: int | None) -> None:
        if not (directory / GRAPH).is_file():
            raise ExportError(
                f"{directory} was exported by an older version, without {GRAPH}: export the model again."
            )
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or own_threads()
        options.log_severity_level = 3  # It warns of each input that has a default.
        providers = onnxruntime.get_available_providers()
        self._session = onnxruntime.InferenceSession(directory / GRAPH, options, providers=providers)
        told = self._session.get_modelmeta().custom_metadata_map
        super().__init__(directory, threads)
        self.settings = {name: int(value) for name, value in told.items()}

    @staticmethod
    def recognises(directory: Path) -> bool:
        """Tells whether the folder has a graph."""
        return any((directory / name).is_file() for name in (GRAPH, _OLD_GRAPH))

    @property
    def max_source_length(self) -> int:
        """Maximum number of source tokens that are translated."""
        return int(self.settings["max_source_length"])

    def difference(self, settings: dict[str, Any]) -> str | None:
        """Returns None: the graph searches as the model does."""
        return None

    def search(
        self, sources: list[list[int]], batch_tokens: int, progress: Callable[[int], object], settings: dict[str, Any]
    ) -> list[tuple[Hypothesis, ...]]:
        """Searches in batches of equal lengths; see `_Model.search`."""
        given = self._inputs(settings)
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        hypotheses: dict[int, tuple[Hypothesis, ...]] = {}
        while order:
            count = max(1, batch_tokens // len(sources[order[0]]))
            batch, order = order[:count], order[count:]
            found = self._found([sources[index] for index in batch], given)
            hypotheses |= dict(zip(batch, found, strict=True))
            progress(len(batch))
        return [hypotheses[index] for index in range(len(sources))]

    def _inputs(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Returns settings for the graph that replace its own.

        Raises:
            ExportError: The graph cannot search with them.
        """
        import numpy as np

        chosen = {name: value for name, value in settings.items() if value is not None}
        beams, best = (int(chosen.get(name) or self.settings[name]) for name in ("num_beams", "num_return_sequences"))
        if best > beams:
            raise ExportError(f"{best} translations per line need num_beams of at least {best}.")
        if beams > self.settings["most_beams"]:
            raise ExportError(
                f"num_beams={beams} is too large for this vocabulary: at most {self.settings['most_beams']}."
            )
        if "max_length_beyond_source" in chosen:
            chosen["max_new_tokens"] = 0
        types = {"length_penalty": np.float32}
        return {name: np.array([value], dtype=types.get(name, np.int64)) for name, value in chosen.items()}

    def _found(self, sources: list[list[int]], given: dict[str, Any]) -> list[tuple[Hypothesis, ...]]:
        """Returns the hypotheses of each source of a batch."""
        import numpy as np

        lengths = np.array([len(source) for source in sources])
        mask_NS = np.arange(lengths.max()) < lengths[:, None]
        ids_NS = np.zeros(mask_NS.shape, dtype=np.int64)
        ids_NS[mask_NS] = np.concatenate(sources)
        inputs = {"input_ids": ids_NS, "attention_mask": mask_NS.astype(np.int64), **given}
        sequences, scores, written = self._session.run(None, inputs)
        best, has_beam = sequences.shape[1], int(given.get("num_beams", [self.num_beams])[0]) > 1
        rows = [
            row[:length] for row, length in zip(sequences.reshape(-1, sequences.shape[2]), written.flat, strict=True)
        ]
        texts = self.tokenizer.decode_batch(rows)
        everyone = [
            Hypothesis(one_line(text), float(score) if has_beam else None, len(row))
            for text, score, row in zip(texts, scores.flat, rows, strict=True)
        ]
        return [tuple(everyone[first : first + best]) for first in range(0, len(everyone), best)]


class Ctranslate2Model(_Model):
    """CTranslate2's own search."""

    engine, files = "CTranslate2", "CTranslate2's files"
    needed = (*_Model.needed, "generation_config.json")

    def __init__(self, directory: Path, threads: int | None) -> None:
        import ctranslate2

        super().__init__(directory, threads)
        self.settings = _settings(directory, "generation_config")
        refuse_settings(self.settings, directory)
        model = _settings(directory, "config")
        if "quantization" not in model:
            raise ExportError("its config.json does not say in which type its weights are: export the model again.")
        # Where CTranslate2 has no int16 it would use int8, which is wrong without VNNI.
        here = ctranslate2.get_supported_compute_types("cpu")
        compute_type = "default" if model["quantization"] != "int16" or "int16" in here else "float32"
        self._translator = ctranslate2.Translator(
            str(directory), compute_type=compute_type, intra_threads=threads or own_threads()
        )
        self._positions = int(model["positions"])

    @staticmethod
    def recognises(directory: Path) -> bool:
        """Tells whether the folder has CTranslate2's weights and vocabulary."""
        vocabularies = ("shared_vocabulary.json", "source_vocabulary.json")
        return (directory / "model.bin").is_file() and any((directory / name).is_file() for name in vocabularies)

    @property
    def max_source_length(self) -> int:
        """Maximum number of source tokens that are translated."""
        return self._positions

    def difference(self, settings: dict[str, Any]) -> str | None:
        """Describes how a beam search of CTranslate2 differs; a greedy search does not."""
        if (settings.get("num_beams") or self.num_beams) == 1:
            return None
        return (
            "CTranslate2's search differs from the paper's: it divides scores by length^length_penalty, "
            "ends a search once as many hypotheses have ended as the beam holds, and has one length limit "
            "for all lines."
        )

    def search(
        self, sources: list[list[int]], batch_tokens: int, progress: Callable[[int], object], settings: dict[str, Any]
    ) -> list[tuple[Hypothesis, ...]]:
        """Searches for all sources in one call; see `_Model.search`."""
        chosen = {**self.settings, **{name: value for name, value in settings.items() if value is not None}}
        beams = chosen.get("num_beams") or 1
        limits = self._limits([len(source) for source in sources], settings)
        never = [*(chosen.get("bad_words_ids") or ()), *([token] for token in chosen.get("suppress_tokens") or ())]
        results = self._translator.translate_batch(
            [self._tokens(source) for source in sources],
            max_batch_size=batch_tokens,
            batch_type="tokens",
            beam_size=beams,
            num_hypotheses=chosen.get("num_return_sequences") or 1,
            length_penalty=chosen.get("length_penalty") or 0,
            suppress_sequences=[self._tokens(words) for words in never] or None,
            max_input_length=self._positions,
            max_decoding_length=max(limits),
            return_scores=beams > 1,
            return_end_token=True,
        )
        progress(len(sources))
        return [
            tuple(self._hypothesis(result, number, limit) for number in range(len(result.hypotheses)))
            for result, limit in zip(results, limits, strict=True)
        ]

    def _tokens(self, ids: list[int]) -> list[str]:
        return [self.tokenizer.id_to_token(token) for token in ids]

    def _hypothesis(self, result: Any, number: int, limit: int) -> Hypothesis:
        tokens = [self.tokenizer.token_to_id(token) for token in result.hypotheses[number][:limit]]
        text = one_line(self.tokenizer.decode([token for token in tokens if token is not None]))
        return Hypothesis(text, result.scores[number] if result.scores else None, len(tokens))

    def _limits(self, lengths: list[int], given: dict[str, Any]) -> list[int]:
        """Returns the tokens allowed for each translation, as in `Decoder.limits`."""
        beyond, own = given.get("max_length_beyond_source"), self.settings
        longest, length = own.get("max_new_tokens"), own.get("max_length")
        if beyond is None and longest is None and length in (None, 20):
            beyond = own.get("max_length_beyond_source")
        if beyond is None:
            return [min(longest or (length or 21) - 1, self._positions)] * len(lengths)
        return [min(one + beyond, self._positions) for one in lengths]
