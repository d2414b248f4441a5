"""Translations with alignments, computed in one pass over the finished translations so that search stays fast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vanilla_transformer.inspection.alignment import Aligner, AlignmentHeads, Side, Unit, attention_of_heads
from vanilla_transformer.translation import LineTranslator, Translation


@dataclass(frozen=True)
class AligningTranslator(LineTranslator):
    """Translates lines and aligns each translation with its line.

    Attributes:
        heads: The heads from which alignments are read.
        unit: What is aligned, words or pieces.
    """

    heads: AlignmentHeads
    unit: Unit

    @classmethod
    def from_translator(cls, translator: LineTranslator, *, unit: Unit) -> "AligningTranslator":
        """Takes another translator's model and settings, and the heads chosen for the model.

        Raises:
            AlignmentError: None were chosen.
        """
        return cls(**vars(translator), heads=AlignmentHeads.from_model(translator.model), unit=unit)

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Translates like any `LineTranslator`; each hypothesis has its `alignment`."""
        aligner = Aligner(self.model, self.tokenizer)
        return aligned(aligner, self.heads, self.unit, lines, super().translate(lines, progress))


def aligned(
    aligner: Aligner, heads: AlignmentHeads, unit: Unit, lines: Sequence[str], translations: Sequence[Translation]
) -> list[Translation]:
    """Returns the translations with the alignment of each hypothesis."""
    pairs = [
        (Side(line, translation.source_ids), Side(hypothesis.text, hypothesis.ids))
        for line, translation in zip(lines, translations, strict=True)
        for hypothesis in translation.hypotheses
    ]
    attended = zip(pairs, attention_of_heads(aligner, pairs, heads, mean=True), strict=True)
    found = iter([aligner.read(*pair, weights_TS, unit).pharaoh() for pair, weights_TS in attended])
    return [
        replace(one, hypotheses=tuple(replace(each, alignment=next(found)) for each in one.hypotheses))
        for one in translations
    ]
