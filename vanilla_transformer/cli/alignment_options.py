"""Options of `translate` that read the attention of the model: alignments."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vanilla_transformer.cli.arguments import UsageError

if TYPE_CHECKING:
    from vanilla_transformer.translation.lines import Translator


@dataclass(frozen=True)
class AlignmentOptions:
    """Alignment: which words of a line its translated words come from."""

    alignment: Annotated[Literal["words", "pieces"] | None, arg(metavar="words|pieces", help_behavior_hint="")] = None
    """Add the source words that each translated word comes from, as `translation ||| 0-0 1-2`
    (source-target, counted from 0; with --nbest, before the score).
    words are separated by spaces, pieces are the model's sub-words."""

    def check(self, models: int) -> None:
        """Raises UsageError for several models."""
        if self.alignment is not None and models > 1:
            raise UsageError("--alignment reads the attention of one model, so it cannot be given with several.")

    def translator(self, translator: Any) -> "Translator":
        """Returns a translator that aligns each translation; the given one without --alignment."""
        if self.alignment is None:
            return translator
        from vanilla_transformer.inspection.aligning_translator import AligningTranslator

        return AligningTranslator.from_translator(translator, unit=self.alignment)
