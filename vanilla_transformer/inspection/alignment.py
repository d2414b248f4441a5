"""Word alignments: the source words of each translated word, read from the decoder's attention.

Shapes in names: B pairs · N layers · H heads · T target pieces · S source pieces.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.inspection.recording import InspectionError, eager_attention, encode, first_token
from vanilla_transformer.limits import refuse_one_text
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import (
    RecurrentEncoderDecoderConfig,
)

Unit = Literal["words", "pieces"]
Step = Literal["input", "output"]
STEPS: tuple[Step, ...] = get_args(Step)
# Attention weights of a batch, 4 bytes each: larger batches no longer fit into the processor's caches.
_BATCH_WEIGHTS = 4_000_000


class AlignmentError(InspectionError):
    """Pairs that cannot be aligned, or heads that a model does not have."""


@dataclass(frozen=True)
class AlignmentHeads:
    """The cross-attention from which alignments are read: the mean of some heads at one of two steps.

    Attributes:
        heads: (layer, head) of each, counted from 0.
        step: The step at which a target token is the decoder's `input` (Chen et al. 2020), or its `output`.
    """

    heads: tuple[tuple[int, int], ...]
    step: Step = "input"

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> "AlignmentHeads":
        """Returns the heads that the generation config names, or the only head of a model.

        Raises:
            AlignmentError: None were chosen, or the model has no attention over the source.
        """
        if _layers(model) * _heads(model) == 1:
            # A recurrent model attends to the source before it reads its input.
            return cls(((0, 0),), "output" if isinstance(model.config, RecurrentEncoderDecoderConfig) else "input")
        chosen = getattr(model.generation_config, "alignment_heads", None)
        if chosen is None:
            raise AlignmentError(
                "No alignment heads have been chosen for this model: choose them once, on some hundred "
                "lines of text, with `vanilla-transformer align MODEL SOURCE TARGET --choose-heads`, or "
                "name them."
            )
        return cls.from_layers(model, chosen, getattr(model.generation_config, "alignment_step", "input"))

    @classmethod
    def from_layers(
        cls, model: PreTrainedModel, chosen: Iterable[int | Sequence[int]], step: Step = "input"
    ) -> "AlignmentHeads":
        """Makes heads from layer numbers, each standing for all of its heads, or from pairs of layer and head.

        Raises:
            AlignmentError: The model has no such layer or head.
        """
        layers, heads = _layers(model), _heads(model)
        pairs: list[tuple[int, int]] = []
        for one in chosen:
            layer, *head = (one,) if isinstance(one, int) else tuple(one)
            if not 0 <= layer < layers or len(head) > 1 or any(not 0 <= number < heads for number in head):
                raise AlignmentError(
                    f"The decoder has no head {':'.join(map(str, (layer, *head)))}: its layers are 0 to {layers - 1}, "
                    f"with heads 0 to {heads - 1} each."
                )
            pairs += [(layer, number) for number in head or range(heads)]
        if not pairs:
            raise AlignmentError("An alignment needs at least one head.")
        return cls(tuple(dict.fromkeys(pairs)), step)

    @classmethod
    def from_text(cls, model: PreTrainedModel, text: str) -> "AlignmentHeads":
        """Parses `output 2:0 2:1`: a step (default `input`), then layers or heads of layers.

        Raises:
            AlignmentError: The text has another form, or the model has no such layer or head.
        """
        words = text.split()
        step: Step = words.pop(0) if words[:1] in (["input"], ["output"]) else "input"  # type: ignore[assignment]
        if not words or not all(re.fullmatch(r"\d+(:\d+)?", word) for word in words):
            raise AlignmentError(
                f"Alignment heads are given as `output 2:0 2:1` or `3`, layer and head, not {text!r}."
            )
        return cls.from_layers(model, [tuple(map(int, word.split(":"))) for word in words], step)

    @classmethod
    def every(cls, model: PreTrainedModel, step: Step) -> "AlignmentHeads":
        """Returns all heads of the model."""
        return cls.from_layers(model, range(_layers(model)), step)

    def __str__(self) -> str:
        return " ".join([self.step, *(f"{layer}:{head}" for layer, head in self.heads)])


def _layers(model: PreTrainedModel) -> int:
    if isinstance(model.config, RecurrentEncoderDecoderConfig):
        if model.config.attention == "none":
            raise AlignmentError("This model has no attention over the source, and so no alignments.")
        return 1
    if not model.config.is_encoder_decoder:
        raise AlignmentError("This model has no cross-attention, and so no alignments.")
    return int(model.config.decoder_layers)


def _heads(model: PreTrainedModel) -> int:
    if isinstance(model.config, RecurrentEncoderDecoderConfig):
        return 1
    return int(getattr(model.config, "num_heads", None) or model.config.decoder_attention_heads)


@dataclass(frozen=True)
class Alignment:
    """The alignment of a source and its target.

    Attributes:
        source: The words or pieces of the source, without `</s>`.
        target: The words or pieces of the target, without `</s>`.
        weights: The attention of each target unit to each source unit, (target, source); rows sum to 1.
        links: (source, target), in the target's order. A piece is linked with the piece to which it attends most, a
            word with all words with which its pieces are linked.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: torch.Tensor
    links: tuple[tuple[int, int], ...]

    def pharaoh(self) -> str:
        """Writes `0-0 1-2`: source and target of each link."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


@dataclass(frozen=True)
class Side:
    """A source or a target: its text, and its tokens, including special ones."""

    text: str
    ids: tuple[int, ...]


def alignments(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    unit: Unit = "words",
    heads: AlignmentHeads | None = None,
) -> list[Alignment]:
    """Aligns each source with its target, in one forward pass over the given targets.

    Words are those of `str.split`.

    Args:
        heads: The heads from which alignments are read (default: `AlignmentHeads.from_model`).

    Raises:
        AlignmentError: The model has no cross-attention, or the numbers of sources and targets differ.
        InspectionError: A text is empty, or the tokenizer cannot produce a target.
    """
    pairs = sides(model, tokenizer, sources, targets)
    aligner, heads = Aligner(model, tokenizer), heads or AlignmentHeads.from_model(model)
    return [
        aligner.read(source, target, weights, unit)
        for (source, target), weights in zip(pairs, attention_of_heads(aligner, pairs, heads, mean=True), strict=True)
    ]


def sides(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: Sequence[str], targets: Sequence[str]
) -> list[tuple[Side, Side]]:
    """Returns sources and targets with their tokens.

    Raises:
        AlignmentError: The numbers of sources and targets differ.
        InspectionError: A text is empty, or the tokenizer cannot produce a target.
        SettingError: A single text is given instead of several.
    """
    refuse_one_text("sources", sources)
    refuse_one_text("targets", targets)
    if len(sources) != len(targets):
        raise AlignmentError(f"There are {len(sources)} sources and {len(targets)} targets: they must match.")
    return [
        (
            Side(source, _ids(encode(model, tokenizer, source, "source"))),
            Side(target, _ids(encode(model, tokenizer, target, "target"))),
        )
        for source, target in zip(sources, targets, strict=True)
    ]


def _ids(inputs: dict[str, torch.Tensor]) -> tuple[int, ...]:
    return tuple(inputs["input_ids"][0].tolist())


class Aligner:
    """Aligns translations with their sources by a model's attention, many in one pass."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._special = set(tokenizer.all_special_ids)
        # An unknown token stands for a word of the source, but for nothing that is written in a target.
        self._not_source = self._special - {tokenizer.unk_token_id}

    def read(self, source: Side, target: Side, weights_TS: torch.Tensor, unit: Unit) -> Alignment:
        """Returns the alignment of a pair from its weights."""
        links = {(column, row) for row, column in enumerate(_best(weights_TS))}
        if unit == "pieces":
            names = (self._pieces(source, self._not_source), self._pieces(target, self._special))
            return Alignment(*names, weights_TS, _in_order(links))
        sources = self.units(source, self._not_source)
        targets = self.units(target, self._special)
        words = {(sources.of_piece[column], targets.of_piece[row]) for column, row in links}
        return Alignment(sources.texts, targets.texts, merge(weights_TS, sources, targets), _in_order(words))

    def _pieces(self, side: Side, special: set[int]) -> tuple[str, ...]:
        return tuple(self.tokenizer.convert_ids_to_tokens([token for token in side.ids if token not in special]))

    def units(self, side: Side, special: set[int], pattern: str = r"\S+") -> "Units":
        """Returns the stretches of a text that match; the pattern must leave out nothing but white space."""
        pieces = [token for token in side.ids if token not in special]
        return Units.from_pieces(self.tokenizer, pieces, side.text, pattern)

    def inputs(self, pairs: Sequence[tuple[Side, Side]]) -> dict[str, torch.Tensor]:
        """Returns the model's inputs: targets as the decoder reads them, up to the last token that can be aligned."""
        start = first_token(self.model)
        read = [[start, *target.ids[: self.target_rows(target.ids)[-1] + 1]] for _, target in pairs]
        ids, mask = self._padded([source.ids for source, _ in pairs])
        return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": self._padded(read)[0]}

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns rows with padding at the end, and a mask that is 1 where there is none."""
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        mask = torch.arange(longest) < torch.tensor([[len(tokens)] for tokens in rows])
        return ids.to(self.model.device), mask.long().to(self.model.device)

    def shape(self, pair: tuple[Side, Side]) -> tuple[int, int]:
        """Counts the target and source pieces of a pair that can be aligned."""
        return len(self.target_rows(pair[1].ids)), len(self.source_columns(pair[0].ids))

    def source_columns(self, ids: Sequence[int]) -> list[int]:
        """Returns the places of source tokens that can be aligned."""
        return [place for place, token in enumerate(ids) if token not in self._not_source]

    def target_rows(self, ids: Sequence[int]) -> list[int]:
        """Returns the places of target tokens that can be aligned."""
        return [place for place, token in enumerate(ids) if token not in self._special]


@dataclass(frozen=True)
class Units:
    """Stretches of a text, such as its words: their spans, and the stretch in which each piece begins."""

    text: str
    spans: tuple[tuple[int, int], ...]
    of_piece: tuple[int, ...]

    @classmethod
    def from_pieces(
        cls, tokenizer: PreTrainedTokenizerBase, pieces: Sequence[int], text: str, pattern: str
    ) -> "Units":
        """Finds the text of each piece of any tokenizer by decoding all pieces up to it; spaces do not count.

        Where the pieces spell another text, as after a normalizer or a cut, the two texts are matched.
        """
        spans = tuple(match.span() for match in re.finditer(pattern, text))
        unit_of_letter = [unit for unit, (start, end) in enumerate(spans) for _ in range(start, end)]
        letters = "".join(text[start:end] for start, end in spans)
        beginnings = [list(pieces[:end]) for end in range(len(pieces) + 1)]
        # One call where the tokenizer has a backend: others decode each in Python.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        prefixes = backend.decode_batch(beginnings) if backend is not None else tokenizer.batch_decode(beginnings)
        spelled = ["".join(prefix.split()) for prefix in prefixes]
        # Where a piece is less than a letter, the pieces up to it do not spell a prefix of the whole.
        starts = [_common(before, spelled[-1]) for before in spelled[:-1]]
        place_of = _places(spelled[-1], letters) if starts else []
        last = max(0, len(letters) - 1)
        of_piece = [unit_of_letter[min(place_of[min(start, len(place_of) - 1)], last)] for start in starts if letters]
        return cls(text, spans, tuple(of_piece))

    @property
    def texts(self) -> tuple[str, ...]:
        """Returns the text of each stretch."""
        return tuple(self.text[start:end] for start, end in self.spans)

    def membership(self) -> torch.Tensor:
        """Returns 1 where a unit has a piece, (units, pieces)."""
        return (torch.arange(len(self.spans))[:, None] == torch.tensor(self.of_piece, dtype=torch.long)).float()


def _common(first: str, second: str) -> int:
    """Returns the length of the common prefix of two texts."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(place for place in range(length) if first[place] != second[place])


def _places(spelled: str, letters: str) -> list[int]:
    """Maps each letter of `spelled`, and its end, to a place in `letters`."""
    if letters.startswith(spelled):
        return list(range(len(spelled) + 1))
    places = [0] * (len(spelled) + 1)
    for _, i, i_end, j, j_end in difflib.SequenceMatcher(None, spelled, letters, autojunk=False).get_opcodes():
        for letter in range(i, i_end):
            places[letter] = min(j + letter - i, max(j, j_end - 1))
    places[-1] = len(letters)
    return places


def merge(weights_TS: torch.Tensor, sources: Units, targets: Units) -> torch.Tensor:
    """Takes the mean over a target's pieces and the sum over a source's; a target without pieces gets no weights."""
    rows, columns = targets.membership(), sources.membership()
    return (rows / rows.sum(1, keepdim=True).clamp(min=1)) @ weights_TS @ columns.T


def _best(weights_TS: torch.Tensor) -> list[int]:
    return weights_TS.argmax(1).tolist() if weights_TS.numel() else []


def _in_order(links: set[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(links, key=lambda link: (link[1], link[0])))


def attention_of_heads(
    aligner: Aligner, pairs: Sequence[tuple[Side, Side]], heads: AlignmentHeads, *, mean: bool = False
) -> list[torch.Tensor]:
    """Returns each head's attention in each pair, (heads, target pieces, source pieces), or the heads' mean.

    `</s>` is left out, and rows sum to 1 without it.
    """
    model = aligner.model.base_model  # Without the projection to the vocabulary, which is most of the work.
    found = [torch.zeros(1 if mean else len(heads.heads), *aligner.shape(pair)) for pair in pairs]
    there = [index for index, weights in enumerate(found) if weights.numel()]
    order = sorted(there, key=lambda index: -len(pairs[index][0].ids) - len(pairs[index][1].ids))
    with eager_attention(aligner.model), torch.no_grad():
        for batch in _batches(model, pairs, order):
            inputs = aligner.inputs([pairs[index] for index in batch])
            attended: Any = model(**inputs, output_attentions=True, use_cache=False).cross_attentions
            weights_BHTS = torch.stack([attended[layer][:, head] for layer, head in heads.heads], 1).float().cpu()
            for index, weights_HTS in zip(batch, weights_BHTS, strict=True):
                source, target = pairs[index]
                rows = [row + (heads.step == "input") for row in aligner.target_rows(target.ids)]
                weights = weights_HTS[:, rows][..., aligner.source_columns(source.ids)]
                weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
                found[index] = weights.mean(0) if mean else weights
    return [weights.mean(0) if mean and weights.ndim == 3 else weights for weights in found]


def _batches(model: Any, pairs: Sequence[tuple[Side, Side]], order: list[int]) -> Iterator[list[int]]:
    """Yields batches of pairs of about equal length, within the limit on attention weights of a pass."""
    heads = _layers(model) * _heads(model)
    while order:
        source, target = (len(side.ids) + 1 for side in pairs[order[0]])
        count = max(1, _BATCH_WEIGHTS // (heads * (source * source + target * target + source * target)))
        yield order[:count]
        order = order[count:]
