"""Options of `translate` that read the attention of the model: alignments, and markup put where they say."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vanilla_transformer.cli.arguments import Flag, OptionalText, UsageError

if TYPE_CHECKING:
    from vanilla_transformer.translation.lines import Translator


@dataclass(frozen=True)
class AlignmentOptions:
    """Alignment: which words of a line its translated words come from."""

    alignment: Annotated[
        Literal["words", "pieces", "soft-words", "soft-pieces"] | None,
        arg(metavar="words|pieces|soft-words|soft-pieces", help_behavior_hint=""),
    ] = None
    """Add the source words that each translated word comes from, as `translation ||| 0-0 1-2`
    (source-target, counted from 0; with --nbest, before the score).
    words are separated by spaces, pieces are the model's sub-words;
    the soft forms list, for each target word or piece, its weights over the source instead."""
    alignment_heads: OptionalText = None
    """Attention heads to read the alignment from, such as `output 2:0 2:1`: the step, then layer:head,
    or a layer alone for all its heads (default: those chosen by `align --choose-heads`)."""
    keep_markup: Flag = False
    """Translate without tags (`<b>`, `</b>`, `<br/>`) and placeholders (`{name}`, `%s`),
    then put each back where the alignment says: none is lost, changed or duplicated."""

    excludes = {("keep-markup", "alignment"): ", which counts words without markup"}
    not_for_several = dict.fromkeys(("alignment", "keep-markup"), "reads the attention of one model")

    def check(self) -> None:
        """Raises UsageError for heads from which nothing is read."""
        if self.alignment_heads is not None and not self._aligns:
            raise UsageError("--alignment-heads is for --alignment and --keep-markup.")

    @property
    def _aligns(self) -> bool:
        return self.alignment is not None or self.keep_markup

    def translator(self, translator: Any) -> "Translator":
        """Returns a translator that reads the attention; the given one if no option asks for it."""
        if not self._aligns:
            return translator
        from vanilla_transformer.extras.inspection.aligning_translator import AligningTranslator
        from vanilla_transformer.extras.inspection.markup import MarkupTranslator

        if self.alignment is None:
            return MarkupTranslator.from_translator(translator, self.alignment_heads)
        return AligningTranslator.from_translator(translator, self.alignment_heads, form=self.alignment)

    def settings(self, translator: Any) -> dict[str, Any]:
        """Returns the settings on which translations depend, by the names of the options."""
        if not self._aligns:
            return {}
        heads = str(translator.heads)
        return {"alignment": self.alignment, "keep_markup": self.keep_markup, "alignment_heads": heads}
