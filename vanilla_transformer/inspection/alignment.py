"""Word alignments: the source words of each target word, read from chosen heads of the decoder's cross-attention.

A target token is aligned at the step at which it is the decoder's input, or its output (Chen et al. 2020).

Shapes in names: B pairs · H heads · T target pieces · S source pieces.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.batching import pad
from vanilla_transformer.errors import ModelError, check_texts
from vanilla_transformer.inspection.pieces import decoded_beginnings, word_of_each
from vanilla_transformer.inspection.recording import eager_attention, encode
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from vanilla_transformer.translation import TranslationResult

Step = Literal["input", "output"]
STEPS: tuple[Step, ...] = get_args(Step)
# Attention weights of a batch, 4 bytes each: larger batches no longer fit into the processor's caches.
_BATCH_WEIGHTS = 4_000_000


@dataclass(frozen=True)
class AlignmentHeads:
    """The cross-attention from which alignments are read: heads, (layer, head) counted from 1, at one of two steps."""

    heads: tuple[tuple[int, int], ...]
    step: Step = "input"

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> "AlignmentHeads":
        """Returns the heads that the generation config names, or the only head of a model."""
        there = every_head(model)
        if len(there) == 1:
            # A recurrent model attends to the source before it reads its input.
            return cls(there, "output" if isinstance(model.config, RecurrentEncoderDecoderConfig) else "input")
        chosen = getattr(model.generation_config, "alignment_heads", None)
        if chosen is None:
            raise ModelError(
                "No alignment heads have been chosen for this model: choose them once, on some hundred lines of text, "
                "with `vanilla-transformer align MODEL SOURCE TARGET --choose-heads`, or name them."
            )
        # A generation config counts from 0, as Whisper's does.
        heads = tuple((layer + 1, head + 1) for layer, head in chosen)
        return cls(heads, getattr(model.generation_config, "alignment_step", "input"))

    def __str__(self) -> str:
        return " ".join([self.step, *(f"{layer}:{head}" for layer, head in self.heads)])


def every_head(model: PreTrainedModel) -> tuple[tuple[int, int], ...]:
    """Returns (layer, head), counted from 1, of each head that attends to the source."""
    config: PreTrainedConfig = model.config
    if isinstance(config, RecurrentEncoderDecoderConfig) and config.attention != "none":
        return ((1, 1),)
    if isinstance(config, RecurrentEncoderDecoderConfig) or not config.is_encoder_decoder:
        raise ModelError("This model has no attention from a decoder to the source, and so no alignments.")
    heads = getattr(config, "num_heads", None) or config.decoder_attention_heads
    return tuple((layer + 1, head + 1) for layer in range(config.decoder_layers) for head in range(heads))


@dataclass(frozen=True)
class Alignment:
    """The words of a source and of its target, and their links, (source, target), in the target's order."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...]

    def pharaoh(self) -> str:
        """Writes `0-0 1-2`: source and target of each link."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


@dataclass(frozen=True)
class Side:
    """A source or a target: its text, its tokens, and the places of those that can be aligned."""

    text: str
    ids: tuple[int, ...]
    places: list[int]


def alignments(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    heads: AlignmentHeads | None = None,
) -> list[Alignment]:
    """Aligns each source with its target, in one forward pass over the given targets; words are those of `str.split`.

    A text of white space has no links.

    Args:
        heads: The heads from which alignments are read (default: `AlignmentHeads.from_model`).

    Raises:
        ModelError: The model has no cross-attention, the numbers of sources and targets differ, or a target cannot be
            written with the tokenizer.
    """
    aligner = Aligner(model, tokenizer)
    return aligner.align(aligner.pairs(sources, targets), heads)


class Aligner:
    """A model and its tokenizer, to align many pairs in few passes."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[Side, Side]]:
        """Returns sources and targets with their tokens; raises as `alignments` does."""
        check_texts("sources", sources)
        check_texts("targets", targets)
        if len(sources) != len(targets):
            raise ModelError(f"There are {len(sources)} sources and {len(targets)} targets: they must match.")
        return [(self._read(s, "source"), self._read(t, "target")) for s, t in zip(sources, targets, strict=True)]

    def _read(self, text: str, name: Literal["source", "target"]) -> Side:
        return self.side(text, tuple(encode(self.tokenizer, text, name)) if text.strip() else (), name)

    def side(self, text: str, ids: tuple[int, ...], name: Literal["source", "target"]) -> Side:
        """Returns a source or a target of these tokens.

        An unknown token stands for a word of the source, but for nothing that is written in a target.
        """
        left_out = {*self.tokenizer.all_special_ids} - ({self.tokenizer.unk_token_id} if name == "source" else set())
        return Side(text, ids, [place for place, token in enumerate(ids) if token not in left_out])

    def align(self, pairs: Sequence[tuple[Side, Side]], heads: AlignmentHeads | None = None) -> list[Alignment]:
        """Returns the alignment of each pair: a word is linked with each word that a piece of it attends to most."""
        found = []
        attended = self.attention(pairs, heads or AlignmentHeads.from_model(self.model))
        for (source, target), weights_HTS in zip(pairs, attended, strict=True):
            best = weights_HTS.mean(0).argmax(1).tolist() if weights_HTS.numel() else []
            columns, rows = self._words(source), self._words(target)
            links = sorted({(rows[row], columns[column]) for row, column in enumerate(best)})
            words = tuple(source.text.split()), tuple(target.text.split())
            found.append(Alignment(*words, tuple((column, row) for row, column in links)))
        return found

    def _words(self, side: Side) -> list[int]:
        """Returns the word of a text to which each of its tokens that can be aligned belongs."""
        return word_of_each(decoded_beginnings(self.tokenizer, [side.ids[place] for place in side.places]), side.text)

    def inputs(self, pairs: Sequence[tuple[Side, Side]]) -> dict[str, torch.Tensor]:
        """Returns the model's inputs: targets as the decoder reads them, up to the last token that can be aligned."""
        start = self.model.config.decoder_start_token_id
        read = [(start, *target.ids[: target.places[-1] + 1]) for _, target in pairs]
        ids, mask = pad([source.ids for source, _ in pairs], self.tokenizer.pad_token_id)
        decoder_ids, _ = pad(read, self.tokenizer.pad_token_id)
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder_ids}
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def attention(self, pairs: Sequence[tuple[Side, Side]], heads: AlignmentHeads) -> list[torch.Tensor]:
        """Returns each head's attention in each pair, (heads, target pieces, source pieces).

        `</s>` is left out, and rows sum to 1 without it.
        """
        there = every_head(self.model)
        for layer, head in {*heads.heads} - {*there}:
            raise ModelError(f"The decoder has no head {layer}:{head}: the last is {there[-1][0]}:{there[-1][1]}.")
        model = self.model.base_model  # Without the projection to the vocabulary, which is most of the work.
        shapes = [(len(heads.heads), len(target.places), len(source.places)) for source, target in pairs]
        found = [torch.zeros(shape) for shape in shapes]
        with eager_attention(self.model), torch.no_grad():
            for batch in self._batches(pairs, [index for index, weights in enumerate(found) if weights.numel()]):
                inputs = self.inputs([pairs[index] for index in batch])
                attended = model(**inputs, output_attentions=True, use_cache=False).cross_attentions
                weights_BHTS = (
                    torch.stack([attended[layer - 1][:, head - 1] for layer, head in heads.heads], 1).float().cpu()
                )
                for index, weights_HTS in zip(batch, weights_BHTS, strict=True):
                    source, target = pairs[index]
                    rows = [row + (heads.step == "input") for row in target.places]
                    weights = weights_HTS[:, rows][..., source.places]
                    found[index] = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        return found

    def _batches(self, pairs: Sequence[tuple[Side, Side]], left: list[int]) -> Iterator[list[int]]:
        """Yields batches of pairs of about equal length, within the limit on attention weights of a pass."""
        left.sort(key=lambda index: -len(pairs[index][0].ids) - len(pairs[index][1].ids))
        while left:
            source, target = (len(side.ids) + 1 for side in pairs[left[0]])
            weights = len(every_head(self.model)) * (source * source + target * target + source * target)
            count = max(1, _BATCH_WEIGHTS // weights)
            yield left[:count]
            left = left[count:]


def aligned(
    aligner: Aligner, heads: AlignmentHeads, lines: Sequence[str], translations: Sequence[TranslationResult]
) -> list[TranslationResult]:
    """Returns translations of lines, each hypothesis with its `alignment`."""
    pairs = [
        (
            aligner.side(line, translation.source_ids, "source"),
            aligner.side(hypothesis.text, hypothesis.ids, "target"),
        )
        for line, translation in zip(lines, translations, strict=True)
        for hypothesis in translation.hypotheses
    ]
    found = iter(aligner.align(pairs, heads))
    return [
        replace(one, hypotheses=tuple(replace(each, alignment=next(found).pharaoh()) for each in one.hypotheses))
        for one in translations
    ]
