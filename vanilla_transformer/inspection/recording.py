"""Section 3.2 seen at work: what each head of a model attends to, for one source and its target.

Shapes in names: Q query positions · L key positions · H heads · N layers.
"""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inspection.pieces import Pieces

# The three places of section 3.2.3.
Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class InspectionError(ValueError):
    """A layer, head or kind of attention that does not exist, or text that cannot be inspected."""


@dataclass(frozen=True)
class Attention:
    """The attention weights of one forward pass of a model, with the tokens they connect.

    A decoder position reads one token and predicts the next. Its self-attention is therefore between tokens that
    were read, and its cross-attention is shown from the tokens that are predicted.

    Attributes:
        source: What the encoder read, ended by `</s>`.
        read: What the decoder read, begun by `<s>`.
        written: What the decoder wrote after each of these, ended by `</s>`.
        weights: Of each kind (layers, heads, query positions, key positions), float32; each row of keys sums to 1.
    """

    source: Pieces
    read: Pieces
    written: Pieces
    weights: dict[Kind, torch.Tensor]

    def queries(self, kind: Kind) -> Pieces:
        """What attends."""
        return {"encoder": self.source, "decoder": self.read, "cross": self.written}[kind]

    def keys(self, kind: Kind) -> Pieces:
        """What is attended to."""
        return {"encoder": self.source, "decoder": self.read, "cross": self.source}[kind]

    def words(self) -> "Attention":
        """The same between words: the mean over the pieces of a word that attends, the sum over one attended to."""
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
        """Weights of one layer and head, or the mean of all of them, (query positions, key positions).

        Layers and heads count from 0; -1 is the last one.

        Raises:
            InspectionError: The model has no such layer or head, or no attention of that kind.
        """
        if kind not in self.weights:
            raise InspectionError(f"There is no {kind!r} attention here, only {', '.join(map(repr, self.weights))}.")
        weights_NHQL = self.weights[kind]
        weights_HQL = _one_or_mean(weights_NHQL, layer, "layer")
        return _one_or_mean(weights_HQL, head, "head")

    def _repr_html_(self) -> str:
        from vanilla_transformer.inspection.page import attention_page

        # Notebooks put what they show into their own page: a frame keeps this one's styles and names apart.
        page = attention_page([self]).encode()
        source = base64.b64encode(page).decode()
        return f'<iframe src="data:text/html;base64,{source}" style="width: 100%; height: 640px; border: 0"></iframe>'


def attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None
) -> Attention:
    """The attention of a model while it reads `source` and writes `target`, or its own translation if that is None.

    The pass uses eager attention, whichever implementation the model was loaded with: the others never store the
    weights. Dropout is off, even for a model in training mode.

    Raises:
        InspectionError: The source is empty, or longer than the model's positions.
    """
    inputs = _encode(model, tokenizer, source, "source")
    with _written_out(model), torch.no_grad():
        if target is None:
            generated: Any = model.generate(**inputs, num_return_sequences=1, return_dict_in_generate=False)  # type: ignore[operator]
            read_and_written = generated[0].tolist()
            end = _end_of(tokenizer, read_and_written)
            read_and_written = read_and_written[:end]
        else:
            labels = _encode(model, tokenizer, target, "target", text_target=True)["input_ids"][0].tolist()
            read_and_written = [_first_token(model), *labels]
        read = torch.tensor([read_and_written[:-1]], device=model.device)
        outputs = model(**inputs, decoder_input_ids=read, output_attentions=True, use_cache=False)
    found = {
        "encoder": outputs.encoder_attentions,
        "decoder": outputs.decoder_attentions,
        "cross": outputs.cross_attentions,
    }
    return Attention(
        source=Pieces.from_ids(tokenizer, inputs["input_ids"][0].tolist()),
        read=Pieces.from_ids(tokenizer, read_and_written[:-1]),
        written=Pieces.from_ids(tokenizer, read_and_written[1:]),
        weights={kind: torch.cat(list(found[kind])).float().cpu() for kind in KINDS if found[kind]},
    )


def _encode(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, name: str, *, text_target: bool = False
) -> dict[str, torch.Tensor]:
    if not text.strip():
        raise InspectionError(f"The {name} is empty.")
    encoded = tokenizer(text_target=text, return_tensors="pt") if text_target else tokenizer(text, return_tensors="pt")
    length = encoded["input_ids"].shape[1]
    limit = getattr(model.config, "max_position_embeddings", None)
    if getattr(model.config, "positional_encoding", None) == "learned" and limit is not None and length > limit:
        raise InspectionError(
            f"The {name} has {length:,} tokens and the model learned {limit:,} positions: give a shorter one."
        )
    names = ("input_ids",) if text_target else ("input_ids", "attention_mask")
    return {key: encoded[key].to(model.device) for key in names}


def _first_token(model: PreTrainedModel) -> int:
    return int(model.config.decoder_start_token_id)


def _end_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> int:
    """Where a generated sequence ends: after its first `</s>` beyond the token that starts the decoder."""
    return next((place + 1 for place in range(1, len(ids)) if ids[place] == tokenizer.eos_token_id), len(ids))


@contextmanager
def _written_out(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode and with eager attention, restored afterwards."""
    implementation, was_training = model.config._attn_implementation, model.training
    model.set_attn_implementation("eager")
    model.eval()
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
        model.train(was_training)


def _one_or_mean(weights: torch.Tensor, number: int | Literal["mean"], what: str) -> torch.Tensor:
    if number == "mean":
        return weights.mean(0)
    if not -len(weights) <= number < len(weights):
        raise InspectionError(f"There is no {what} {number}: there are {len(weights)}, counted from 0.")
    return weights[number]
