"""Translations with alignments, computed in one pass over the finished translations so that search stays fast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from vanilla_transformer.extras.inspection.alignment import Aligner, AlignmentHeads, Side, Unit, attention_of_heads
from vanilla_transformer.translation import Hypothesis, LineTranslator, Translation

Form = Literal["words", "pieces", "soft-words", "soft-pieces"]


@dataclass(frozen=True)
class AligningTranslator(LineTranslator):
    """Translates lines and aligns each translation with its line.

    Attributes:
        heads: The heads from which alignments are read.
        form: The unit, words or pieces; soft forms hold weights instead of links.
    """

    heads: AlignmentHeads
    form: Form

    @classmethod
    def from_translator(cls, translator: LineTranslator, heads: str | None, *, form: Form) -> "AligningTranslator":
        """Takes another translator's model and settings.

        Args:
            heads: Text for `AlignmentHeads.from_text` (default: the heads chosen for the model).

        Raises:
            AlignmentError: The model does not have these heads, or none were chosen.
        """
        return cls(**vars(translator), heads=heads_of(translator, heads), form=form)

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Translates like any `LineTranslator`; each hypothesis has its `alignment`."""
        aligner = Aligner(self.model, self.tokenizer)
        unit: Unit = "words" if self.form.endswith("words") else "pieces"

        def read(hypothesis: Hypothesis, source: Side, target: Side, weights_TS: torch.Tensor) -> Hypothesis:
            alignment = aligner.read(source, target, weights_TS, unit)
            text = alignment.soft() if self.form.startswith("soft") else alignment.pharaoh()
            return replace(hypothesis, alignment=text)

        return with_attention(aligner, self.heads, lines, super().translate(lines, progress), read)


def heads_of(translator: LineTranslator, text: str | None) -> AlignmentHeads:
    """Returns the named heads, or those chosen for the model."""
    if text is None:
        return AlignmentHeads.from_model(translator.model)
    return AlignmentHeads.from_text(translator.model, text)


def with_attention(
    aligner: Aligner,
    heads: AlignmentHeads,
    lines: Sequence[str],
    translations: Sequence[Translation],
    read: Callable[[Hypothesis, Side, Side, torch.Tensor], Hypothesis],
) -> list[Translation]:
    """Applies `read` to each hypothesis, its source and target, and the attention between their pieces."""
    pairs = [
        (Side(line, translation.source_ids), Side(hypothesis.text, hypothesis.ids))
        for line, translation in zip(lines, translations, strict=True)
        for hypothesis in translation.hypotheses
    ]
    attended = iter(zip(pairs, attention_of_heads(aligner, pairs, heads, mean=True), strict=True))
    changed = []
    for translation in translations:
        hypotheses = []
        for hypothesis in translation.hypotheses:
            (source, target), weights_TS = next(attended)
            hypotheses.append(read(hypothesis, source, target, weights_TS))
        changed.append(replace(translation, hypotheses=tuple(hypotheses)))
    return changed
