"""The option of `translate` for a glossary."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vanilla_transformer.cli.arguments import OptionalPath

if TYPE_CHECKING:
    from vanilla_transformer.extras.combining.terms import Glossary
    from vanilla_transformer.translation.lines import Translator


@dataclass(frozen=True)
class TermOptions:
    """Terms: translations that a glossary requires."""

    terms: OptionalPath = None
    """Glossary with rows of `source term TAB target term`.
    If a line contains a source term, as whole words in the same case, its translation contains the target term.
    Needs a beam; lines with terms take several times as long."""

    excludes = dict.fromkeys((("terms", other) for other in ("alignment", "keep-markup", "rescore", "sample")), "")

    def check(self) -> None:
        """Refuses an invalid glossary before a model is loaded."""
        if self.terms is not None:
            _glossary(self.terms)

    def translator(self, translator: Any) -> "Translator":
        """Returns a translator that writes the required terms; the given one without a glossary."""
        if self.terms is None:
            return translator
        from vanilla_transformer.extras.combining.terms import TermTranslator

        return TermTranslator.from_translator(translator, _glossary(self.terms))

    def settings(self, translator: Any) -> dict[str, Any]:
        """Returns the settings on which translations depend, by the names of the options."""
        from vanilla_transformer.fingerprints import fingerprint_file

        return {} if self.terms is None else {"terms": fingerprint_file(self.terms)}


def _glossary(file: Path) -> "Glossary":
    from vanilla_transformer.extras.combining.terms import Glossary

    return Glossary.read(file)
