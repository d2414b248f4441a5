"""Attention weights (section 3.2) of every head of a model, for one source and its target.

Shapes in names: Q query positions · L key positions · H heads · N layers.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.encoding import token_ids
from vanilla_transformer.errors import ModelError
from vanilla_transformer.inspection.pieces import Pieces
from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from vanilla_transformer.translation.live_models import evaluating

# The three places of section 3.2.3.
Kind = Literal["encoder", "decoder", "cross"]
TITLES: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
# What attends and what is attended to.
SIDES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("read", "read"),
    "cross": ("written", "source"),
}


@dataclass(frozen=True)
class Attention:
    """The attention weights of one forward pass of a model, with the tokens they connect.

    A decoder position reads one token and predicts the next. Its self-attention is therefore shown between the tokens
    it read, and its cross-attention from the tokens it predicted.

    Attributes:
        source: The encoder's input, up to and including `</s>`; empty in a decoder-only model.
        read: The decoder's input, beginning with `<s>`; empty in an encoder-only model.
        written: The token that the decoder predicts after each of these, `</s>` last; empty unless the model is an
            encoder-decoder.
        weights: For each kind (layers, heads, query positions, key positions), float32; each row of keys sums to 1.
    """

    source: Pieces
    read: Pieces
    written: Pieces
    weights: dict[Kind, torch.Tensor]

    def queries(self, kind: Kind) -> Pieces:
        """Returns the pieces that attend."""
        return getattr(self, SIDES[kind][0])

    def keys(self, kind: Kind) -> Pieces:
        """Returns the pieces that are attended to."""
        return getattr(self, SIDES[kind][1])

    def sides(self, kind: Kind) -> tuple[str, str]:
        """Names the side that attends and the side that is attended to: `target as written`, `source`."""
        if not self.written.texts and not (self.source.texts and self.read.texts):
            return "text", "text"
        query, key = ("source" if side == "source" else f"target as {side}" for side in SIDES[kind])
        return query, key

    def words(self) -> "Attention":
        """Merges pieces into words: the mean over the pieces of a query word, the sum over those of a key word."""
        merged = {}
        for kind, weights_NHQL in self.weights.items():
            queries, keys = self.queries(kind).membership(), self.keys(kind).membership()
            merged[kind] = (queries / queries.sum(1, keepdim=True)) @ weights_NHQL @ keys.T
        return replace(
            self,
            source=self.source.as_words(),
            read=self.read.as_words(),
            written=self.written.as_words(),
            weights=merged,
        )

    def select(self, kind: Kind, layer: int | Literal["mean"], head: int | Literal["mean"]) -> torch.Tensor:
        """Returns the weights of one layer and head, or their mean over all, (query positions, key positions).

        Layers and heads count from 1; -1 is the last one.

        Raises:
            ModelError: The model has no such layer or head, or no attention of that kind.
        """
        if kind not in self.weights:
            there = " and ".join(TITLES[one] for one in self.weights)
            raise ModelError(f"This model has no {TITLES[kind]}, only {there}.")
        return _one_or_mean(_one_or_mean(self.weights[kind], layer, "layer"), head, "head")

    def _repr_html_(self) -> str:
        # A notebook puts its outputs into its own page; a frame keeps this page's styles and names apart from it.
        page = attention_page([self]).encode()
        source = base64.b64encode(page).decode()
        return f'<iframe src="data:text/html;base64,{source}" style="width: 100%; height: 640px; border: 0"></iframe>'


def attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None
) -> Attention:
    """Returns a model's attention while it reads `source` and writes `target` (None: the model's own translation).

    Encoder-only and decoder-only models read `source` alone. A recurrent model has cross-attention, of one layer and
    one head. The pass uses eager attention, whichever implementation the model was loaded with, because the others
    never store the weights. Dropout is off, even for a model in training mode.

    Raises:
        ModelError: A text is empty, the tokenizer cannot produce the target, or the model has no attention.
    """
    config = model.config
    if target is not None and not config.is_encoder_decoder:
        raise ModelError("An encoder-only or decoder-only model reads one text: give no target.")
    source_ids, read, written = encode(tokenizer, source, "source"), list[int](), list[int]()
    ids = torch.tensor([source_ids], device=model.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with eager_attention(model), torch.no_grad():
        if config.is_encoder_decoder:
            if target is not None:
                written = encode(tokenizer, target, "target")
            else:
                answer: torch.Tensor = model.generate(**inputs, num_return_sequences=1, return_dict_in_generate=False)  # type: ignore[operator]
                written = answer[0, 1:].tolist()
            read = [config.decoder_start_token_id, *written[:-1]]
            inputs |= {"decoder_input_ids": torch.tensor([read], device=model.device)}
        outputs = model(**inputs, output_attentions=True)
    names = {kind: f"{kind}_attentions" for kind in TITLES}
    if not config.is_encoder_decoder:
        is_decoder = isinstance(config, VanillaTransformerDecoderConfig) or getattr(config, "is_decoder", False)
        source_ids, read = ([], source_ids) if is_decoder else (source_ids, [])
        names = {"decoder" if is_decoder else "encoder": "attentions"}
    weights = {kind: torch.cat(list(outputs[name])).float().cpu() for kind, name in names.items() if outputs.get(name)}
    if not weights:
        raise ModelError("This model has no attention: there is nothing to look at.")
    pieces = partial(Pieces.from_ids, tokenizer)
    return Attention(pieces(source_ids), pieces(read), pieces(written), weights)


def encode(tokenizer: PreTrainedTokenizerBase, text: str, name: Literal["source", "target"]) -> list[int]:
    """Returns the tokens of a source or a target."""
    if not text.strip():
        raise ModelError(f"The {name} is empty.")
    (ids,) = token_ids([text], tokenizer, target=name == "target")
    if name == "target" and tokenizer.unk_token_id in ids:
        tokens = " ".join(tokenizer.convert_ids_to_tokens(ids))
        raise ModelError(f"The tokenizer cannot represent the target: it becomes {tokens}.")
    return ids


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Puts the model into evaluation mode with eager attention, and restores it afterwards."""
    implementation = model.config._attn_implementation
    with evaluating(model):
        model.set_attn_implementation("eager")
        try:
            yield
        finally:
            model.set_attn_implementation(implementation)


def _one_or_mean(weights: torch.Tensor, number: int | Literal["mean"], what: str) -> torch.Tensor:
    if number == "mean":
        return weights.mean(0)
    if number == 0 or abs(number) > len(weights):
        raise ModelError(f"There is no {what} {number}: there are {len(weights)}, counted from 1.")
    return weights[number - 1 if number > 0 else number]


# Weights on a page, 2 bytes each: with more, a browser takes seconds to show it.
MAX_WEIGHTS_ON_A_PAGE = 12_000_000
_FULL = 65535


def attention_page(attentions: Sequence[Attention], title: str = "Attention") -> str:
    """Returns the page: attention by sentence, kind, layer and head, as lines between words or as heat maps.

    Raises:
        ModelError: There are more weights than a browser can show.
    """
    numbers = sum(weights.numel() for one in attentions for weights in one.weights.values())
    if numbers > MAX_WEIGHTS_ON_A_PAGE:
        raise ModelError(
            f"A page of {numbers:,} attention weights is more than a browser shows ({MAX_WEIGHTS_ON_A_PAGE:,}): "
            "give shorter or fewer sentences."
        )
    data = json.dumps({"title": title, "sentences": [_sentence(one) for one in attentions]}, ensure_ascii=False)
    template = files("vanilla_transformer.inspection").joinpath("page.html").read_text(encoding="utf-8")
    # Keeps text from ending the element that holds it.
    return template.replace("{{data}}", data.replace("<", "\\u003c"))


def _sentence(attention: Attention) -> dict[str, object]:
    return {
        "text": " ".join((attention.source or attention.read).words),
        "sides": {
            name: {"pieces": side.texts, "words": side.words, "wordOf": side.word_of}
            for name, side in vars(attention).items()
            if isinstance(side, Pieces)
        },
        "weights": {kind: _packed(weights) for kind, weights in attention.weights.items()},
        "between": {kind: SIDES[kind] for kind in attention.weights},
        "names": {kind: attention.sides(kind) for kind in attention.weights},
    }


def _packed(weights_NHQL: torch.Tensor) -> dict[str, object]:
    """Packs weights as multiples of 1/65,535 in base64, a fifth of the size of decimal text."""
    shares = (weights_NHQL * _FULL).round().to(torch.int32).numpy().astype("<u2")
    return {"shape": list(weights_NHQL.shape), "numbers": base64.b64encode(shares.tobytes()).decode("ascii")}
