"""Answers of each kind of model: as data for programs, and as HTML in which all text is escaped."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, ClassVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.extras.inspection.aligning_translator import aligned
from vanilla_transformer.extras.inspection.alignment import Aligner, AlignmentError, AlignmentHeads
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.translation import LineTranslator

Answer = dict[str, Any]
Settings = dict[str, float]


class DemoError(ValueError):
    """A refused text or setting, explained in one sentence."""


@dataclass(frozen=True)
class Control:
    """A number that a visitor may choose."""

    name: str
    label: str
    least: float
    most: float
    step: float
    default: float

    def check(self, value: Any) -> float:
        """Returns the value, or the default for None.

        Raises:
            DemoError: The value is no number, or out of range.
        """
        if value is None:
            return self.default
        whole = self.step == 1
        if not isinstance(value, int | float) or isinstance(value, bool) or (whole and value != value // 1):
            raise DemoError(f"{self.label} must be a {'whole ' if whole else ''}number, not {str(value)[:40]!r}.")
        if not self.least <= value <= self.most:
            raise DemoError(f"{self.label} must be between {self.least:g} and {self.most:g}, not {value:g}.")
        return int(value) if whole else float(value)


class Kind(ABC):
    """A model with the requests that it can answer.

    Attributes:
        endpoint: The name of this kind in the page's interface for programs.
        hint: The placeholder of the text field.
        controls: The numbers that a visitor may choose.
        note: What an answer lacks and why, if anything.
    """

    endpoint: ClassVar[str]
    hint: ClassVar[str]
    controls: tuple[Control, ...] = ()
    note = ""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model: Any = model
        self.tokenizer: Any = plain_text(tokenizer)
        # The weights stay frozen as long as a page shows the model.
        self._held = contextlib.ExitStack()
        self._held.enter_context(getattr(model, "frozen", contextlib.nullcontext)())

    @abstractmethod
    def answers(self, lines: list[str], settings: Settings) -> list[Answer]:
        """Returns the model's answer to each line; no line is empty."""

    @abstractmethod
    def html(self, answer: Answer) -> str:
        """Returns the answer as HTML."""

    def target(self, answer: Answer) -> str | None:
        """Returns the decoder's text whose attention is shown, or None without an encoder and a decoder."""
        return None


class Translating(Kind):
    """The n best translations of each line, with their scores and alignments."""

    endpoint = "translate"
    hint = "Type a text: each line is translated."

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(model, tokenizer)
        own = self.model.generation_config
        beams, penalty = own.num_beams or 1, float(1.0 if own.length_penalty is None else own.length_penalty)
        self.controls = (
            Control("num_beams", "Beam size", 1, max(10, beams), 1, beams),
            Control("length_penalty", "Length penalty", min(0.0, penalty), max(2.0, penalty), 0.1, penalty),
            Control("n_best", "Translations", 1, 10, 1, 1),
        )
        self.heads: AlignmentHeads | None = None
        try:
            self.heads = AlignmentHeads.from_model(model)
        except AlignmentError as error:
            self.note = str(error)

    def answers(self, lines: list[str], settings: Settings) -> list[Answer]:
        """Translates all lines together."""
        beams, n_best = int(settings["num_beams"]), int(settings["n_best"])
        if n_best > beams:
            raise DemoError(
                f"A beam of {beams} cannot give {n_best} translations: choose a beam size of {n_best} or more."
            )
        translator = LineTranslator.from_model(
            self.model,
            self.tokenizer,
            num_beams=beams,
            length_penalty=settings["length_penalty"],
            num_return_sequences=n_best,
            scores=beams > 1,
        )
        translations = translator.translate(lines)
        if self.heads is not None:
            aligner = Aligner(self.model, self.tokenizer)
            translations = aligned(aligner, self.heads, "words", lines, translations)
        return [
            {
                "source": line,
                "translations": [
                    {"text": one.text, "score": one.score, "alignment": one.alignment}
                    for one in translation.hypotheses
                ],
                "truncated": translation.truncated,
            }
            for line, translation in zip(lines, translations, strict=True)
        ]

    def html(self, answer: Answer) -> str:
        """Shows the translations, below the source if they are aligned with it."""
        best = answer["translations"][0]
        rows = []
        for one in answer["translations"]:
            score = "" if one["score"] is None else f'<span class="vt-score">{one["score"]:.3f}</span>'
            rows.append(f"<li>{_target_words(one)}{score}</li>")
        source = ""
        if best["alignment"] is not None:
            words = [
                f'<span class="vt-word" tabindex="0" data-source="{number}">{escape(word)}</span>'
                for number, word in enumerate(answer["source"].split())
            ]
            source = f'<p class="vt-source">{" ".join(words)}</p>'
        return f'<div class="vt-line">{source}<ol class="vt-translations">{"".join(rows)}</ol></div>'

    def target(self, answer: Answer) -> str:
        """Returns the best translation."""
        return answer["translations"][0]["text"]


def _target_words(translation: Answer) -> str:
    """Marks the words of a translation with the numbers of their source words."""
    text, alignment = translation["text"], translation["alignment"]
    if alignment is None:
        return f'<span class="vt-text">{escape(text)}</span>'
    links: dict[int, list[str]] = {}
    for link in alignment.split():
        source, target = link.split("-")
        links.setdefault(int(target), []).append(source)
    words = [
        f'<span class="vt-word" tabindex="0" data-from="{" ".join(links.get(number, []))}">{escape(word)}</span>'
        for number, word in enumerate(text.split())
    ]
    return f'<span class="vt-text">{" ".join(words)}</span>'


class Predicting(Kind):
    """The line that `predict` writes, for models without a view of their own."""

    endpoint = "predict"
    hint = "Type a text: each line is a separate text."

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, predictor: Any) -> None:
        super().__init__(model, tokenizer)
        self.predictor = predictor

    def answers(self, lines: list[str], settings: Settings) -> list[Answer]:
        """Predicts all lines together."""
        rows = [self.predictor.read(line) for line in lines]
        predictions = self.predictor.predict(rows, lambda count: None)
        return [
            {"source": line, **prediction.values, "line": prediction.line, "truncated": prediction.truncated}
            for line, prediction in zip(lines, predictions, strict=True)
        ]

    def html(self, answer: Answer) -> str:
        """Shows the line that `predict` writes."""
        return f'<p class="vt-text">{escape(answer["line"])}</p>'


class Classifying(Predicting):
    """The probability of each label."""

    endpoint = "classify"
    # The number of bars shown if there are many labels.
    _most = 10

    def html(self, answer: Answer) -> str:
        """Shows a bar for each label, the likeliest first."""
        likeliest = sorted(answer["scores"].items(), key=lambda item: -item[1])[: self._most]
        return bars([(label, share) for label, share in likeliest])


class Tagging(Predicting):
    """A tag for each word."""

    endpoint = "tag"
    hint = "Type a sentence with spaces between its words."

    def html(self, answer: Answer) -> str:
        """Shows each word with its tag below it."""
        words = []
        for word, tag, score in zip(answer["words"], answer["tags"], answer["scores"], strict=True):
            title = "beyond what the model reads" if score is None else f"{score:.3f}"
            words.append(
                f'<span class="vt-tagged" title="{title}"><span>{escape(word)}</span>'
                f'<span class="vt-tag">{escape(tag)}</span></span>'
            )
        return f'<p class="vt-tags">{"".join(words)}</p>'


class Filling(Kind):
    """The likeliest tokens for each mask."""

    endpoint = "fill"
    hint = "Type a text with a mask in it."
    controls = (Control("candidates", "Candidates", 1, 10, 1, 5),)

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, scorer: Any) -> None:
        super().__init__(model, tokenizer)
        self.scorer = scorer

    def answers(self, lines: list[str], settings: Settings) -> list[Answer]:
        """Reads each line once, with all of its masks."""
        candidates, mask = int(settings["candidates"]), self.tokenizer.mask_token_id
        ids = [self.tokenizer(line)["input_ids"] for line in lines]
        rows = [self.scorer.cut(row) for row in ids]
        answers: list[Answer] = [{}] * len(lines)
        for place, shares in self.scorer.answers(rows, lambda count: None):
            masks = []
            for at in [at for at, token in enumerate(rows[place]) if token == mask]:
                best = (-shares[at]).argsort()[:candidates].tolist()
                masks.append([{"text": self._text(token), "score": float(shares[at][token])} for token in best])
            truncated = len(ids[place]) > len(rows[place])
            answers[place] = {"source": lines[place], "masks": masks, "truncated": truncated}
        return answers

    def _text(self, token: int) -> str:
        """Returns the text of a token, or its name if it has none."""
        return str(self.tokenizer.decode([token])).strip() or str(self.tokenizer.convert_ids_to_tokens(token))

    def html(self, answer: Answer) -> str:
        """Shows bars for each mask."""
        if not answer["masks"]:
            mask = escape(str(self.tokenizer.mask_token))
            return f'<p class="vt-note">Put {mask} where the model should fill in a word.</p>'
        return "".join(bars([(one["text"], one["score"]) for one in found]) for found in answer["masks"])


class Continuing(Kind):
    """The continuation of a text, and the probability of the text itself."""

    endpoint = "continue"
    hint = "Type the beginning of a text."
    controls = (
        Control("new_tokens", "New tokens", 1, 100, 1, 40),
        Control("temperature", "Temperature (0: the likeliest)", 0.0, 2.0, 0.1, 0.0),
    )

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, predictor: Any) -> None:
        super().__init__(model, tokenizer)
        self.predictor = predictor

    def answers(self, lines: list[str], settings: Settings) -> list[Answer]:
        """Continues each line on its own."""
        temperature = settings["temperature"]
        search: dict[str, Any] = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        )
        search |= {"max_new_tokens": int(settings["new_tokens"]), "num_beams": 1}
        answers = []
        predictions = self.predictor.predict([self.predictor.read(line) for line in lines], lambda count: None)
        for line, prediction in zip(lines, predictions, strict=True):
            inputs = self.tokenizer(line, return_tensors="pt").to(self.model.device)
            read = inputs["input_ids"].shape[1]
            longest = self.model.config.max_position_embeddings
            if read >= longest:
                raise DemoError(f"The text has {read:,} tokens, but the model reads only {longest:,}: shorten it.")
            ids = self.model.generate(**inputs, **search)[0]
            whole, beginning = (self.tokenizer.decode(one, skip_special_tokens=True) for one in (ids, ids[:read]))
            answers.append({"source": line, "continuation": whole[len(beginning) :], **prediction.values})
        return answers

    def html(self, answer: Answer) -> str:
        """Shows the text and its continuation."""
        per_token = math.exp(-answer["log_probability"] / max(1, answer["tokens"]))
        return (
            f'<p class="vt-text"><span class="vt-read">{escape(answer["source"])}</span>'
            f"{escape(answer['continuation'])}</p>"
            f'<p class="vt-note">Perplexity of your text: {per_token:,.1f} a token.</p>'
        )


def bars(shares: Sequence[tuple[str, float]]) -> str:
    """Shows a bar for each text."""
    rows = [
        f'<li><span class="vt-bar" style="width: {100 * share:.1f}%"></span>'
        f'<span class="vt-name">{escape(text)}</span><span class="vt-score">{share:.3f}</span></li>'
        for text, share in shares
    ]
    return f'<ol class="vt-bars">{"".join(rows)}</ol>'
