"""A model on the page: answers one or many requests together, limits them, and keeps their errors apart."""

import re
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from html import escape
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.extras.demo.answers import (
    Answer,
    Classifying,
    Continuing,
    DemoError,
    Filling,
    Kind,
    Predicting,
    Settings,
    Tagging,
    Translating,
)
from vanilla_transformer.extras.inspection import attention, attention_page
from vanilla_transformer.network import hub_or_cache
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.reading import recipe_from
from vanilla_transformer.translation import load_model

# Attention weights of one view, 2 bytes each: more take seconds to reach a browser.
LARGEST_VIEW = 2_000_000
# The number of a model's examples, and the most characters of one.
_EXAMPLES, _LONGEST_EXAMPLE = 5, 200
_KINDS = {"text-classification": Classifying, "token-classification": Tagging, "text-generation": Continuing}

# A text, and the values of the controls in their order.
Request = tuple[Any, Sequence[Any]]
Reply = list[Answer] | DemoError


class ShownModel:
    """A model that answers visitors.

    Args:
        name: The model's name on the page.
        max_characters: The longest text that it accepts.
    """

    def __init__(self, name: str, kind: Kind, *, examples: Sequence[str] = (), max_characters: int = 1000) -> None:
        self.name, self.kind, self.max_characters = name, kind, max_characters
        self.examples = [text for text in examples if len(text) <= max_characters]
        # To record attention, the model is briefly changed.
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(cls, path: str, *, max_characters: int = 1000, device: str | None = None) -> "ShownModel":
        """Loads a model from a directory or the Hub, in float32.

        Raises:
            OSError, ValueError: There is no such model, or it cannot be shown.
        """
        model, tokenizer = load_model(path, device=device, translates=False)
        return cls.from_model(path, model, tokenizer, max_characters=max_characters)

    @classmethod
    def from_model(
        cls,
        path: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_characters: int = 1000,
    ) -> "ShownModel":
        """Wraps a loaded model, with the examples of the card in its directory or on the Hub."""
        name = Path(path).resolve().name if Path(path).is_dir() else path
        kind = kind_of(path, model, tokenizer)
        return cls(name, kind, examples=card_examples(path), max_characters=max_characters)

    @property
    def about(self) -> str:
        """Number of parameters, for the page."""
        return f"{sum(weight.numel() for weight in self.kind.model.parameters()):,} parameters"

    def reply(self, requests: Sequence[Request]) -> list[Reply]:
        """Replies to each request; requests with the same settings are answered together."""
        replies: list[Reply] = [[] for _ in requests]
        alike: dict[tuple[float, ...], list[int]] = {}
        lines: dict[int, list[str]] = {}
        for place, (text, values) in enumerate(requests):
            try:
                lines[place] = self._lines(text)
                alike.setdefault(tuple(self.settings(values).values()), []).append(place)
            except DemoError as error:
                replies[place] = error
        for values, places in alike.items():
            for place, reply in zip(places, self._together([lines[place] for place in places], values), strict=True):
                replies[place] = reply
        return replies

    def settings(self, values: Sequence[Any]) -> Settings:
        """Returns the controls' values by name.

        Raises:
            DemoError: A value is out of range.
        """
        return {one.name: one.check(value) for one, value in zip(self.kind.controls, values, strict=True)}

    def _lines(self, text: Any) -> list[str]:
        if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DemoError("The text must be text.")  # A program may send half of a surrogate pair.
        if len(text) > self.max_characters:
            raise DemoError(
                f"The text has {len(text):,} characters, but this page takes only {self.max_characters:,}: shorten it."
            )
        return [line for line in text.splitlines() if line.strip()]

    def _together(self, texts: list[list[str]], values: tuple[float, ...]) -> list[Reply]:
        """Replies to texts together; if the model refuses one of them, asks again one by one."""
        all_lines = [line for lines in texts for line in lines]
        if not all_lines:
            return [[] for _ in texts]
        try:
            with self._one_at_a_time:
                answers = iter(self.kind.answers(all_lines, self.settings(values)))
        except ValueError as error:
            if len(texts) == 1:
                return [DemoError(str(error))]
            return [reply for lines in texts for reply in self._together([lines], values)]
        return [[next(answers) for _ in lines] for lines in texts]

    def html(self, reply: Reply) -> str:
        """Shows a reply as HTML."""
        if isinstance(reply, DemoError):
            return f'<p class="vt-error">{escape(str(reply))}</p>'
        if not reply:
            return f'<p class="vt-note">{escape(self.kind.hint)}</p>'
        parts = [self.kind.html(answer) for answer in reply]
        if any(answer.get("truncated") for answer in reply):
            parts.append('<p class="vt-error">A line was too long for the model and was cut.</p>')
        return "".join(parts)

    def attention(self, text: Any, values: Sequence[Any]) -> str:
        """Returns the model's attention for each line, as HTML that embeds a separate page."""
        (reply,) = self.reply([(text, values)])
        if isinstance(reply, DemoError) or not reply:
            return self.html(reply)
        try:
            with self._one_at_a_time:
                self._check_view([answer["source"] for answer in reply])
                seen = [
                    attention(self.kind.model, self.kind.tokenizer, answer["source"], self.kind.target(answer))
                    for answer in reply
                ]
        except ValueError as error:
            return self.html(DemoError(str(error)))
        page = attention_page(seen, title=f"Attention of {self.name}")
        # The embedded page may run its own script, but cannot reach this page or any other.
        return f'<iframe class="vt-attention" sandbox="allow-scripts" srcdoc="{escape(page)}"></iframe>'

    def _check_view(self, lines: list[str]) -> None:
        """Refuses lines whose attention would take too long to reach a browser."""
        tokens = [len(self.kind.tokenizer(line)["input_ids"]) for line in lines]
        config = self.kind.model.config
        layers, heads = (getattr(config, name, None) or 1 for name in ("num_hidden_layers", "num_attention_heads"))
        # A translation is about as long as its source.
        if layers * heads * 3 * sum(count * count for count in tokens) > LARGEST_VIEW:
            raise DemoError(f"A text of {sum(tokens):,} tokens is too long for this view: shorten it.")


def kind_of(path: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Kind:
    """Chooses the kind of requests that the model can answer."""
    if model.config.is_encoder_decoder:
        return Translating(model, tokenizer)
    from vanilla_transformer.tasks import task_of_model

    found: Any = task_of_model(path)
    if found.pipeline == "fill-mask":
        return Filling(model, tokenizer, found.predictor_class(model, tokenizer))
    kind = _KINDS.get(found.pipeline, Predicting)
    return kind(model, tokenizer, found.predictor(model, tokenizer))


def card_examples(path: str) -> list[str]:
    """Returns the examples in a model's card: the Hub's `widget`, or else those of its recipe."""
    try:
        here = Path(path).is_dir()
        with nullcontext() if here else hub_or_cache():
            file = Path(path, "README.md") if here else Path(hf_hub_download(path, "README.md"))
        card = file.read_text(encoding="utf-8")
        head, recipe = (
            yaml.safe_load(found[1]) if (found := re.search(pattern, card, re.DOTALL)) else None
            for pattern in (r"\A---\r?\n(.*?)\r?\n---", r"## Recipe\s+```yaml\r?\n(.*?)```")
        )
    except (OSError, ValueError, HfHubHTTPError, yaml.YAMLError):
        return []  # A model is shown even if its card is missing or damaged.
    texts: list[Any] = []
    if isinstance(head, dict) and isinstance(head.get("widget"), list):
        texts = [one.get("text") for one in head["widget"] if isinstance(one, dict)]
    if not texts and isinstance(recipe, dict):
        with suppress(RecipeError):
            texts = list(recipe_from(recipe).evaluation.examples)
    return [text for text in texts if isinstance(text, str) and text.strip() and len(text) <= _LONGEST_EXAMPLE][
        :_EXAMPLES
    ]
