"""The option of `translate` and `evaluate` to choose among the hypotheses of the beam."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vanilla_transformer.errors import RecipeError

if TYPE_CHECKING:
    from vanilla_transformer.translation import LineTranslator

# The beam, if --num-beams is not given: the model's own gives little to choose from.
BEAMS = 32


@dataclass(frozen=True)
class MinimumBayesRiskOptions:
    """Minimum Bayes risk: choose among the hypotheses of the beam."""

    #: Write the hypothesis that agrees most with all others of the beam, by sacreBLEU's sentence chrF or BLEU.
    #: --num-beams is the number of hypotheses (default: 32). --nbest then sorts by their mean agreement and writes it.
    mbr: Annotated[Literal["chrf", "bleu"] | None, arg(metavar="chrf|bleu", help_behavior_hint="")] = None

    def check(self, num_beams: int | None, nbest: int | None = None) -> None:
        """Raises RecipeError for a beam that is too small."""
        least = max(nbest or 1, 2)
        if self.mbr is not None and (num_beams or BEAMS) < least:
            raise RecipeError(f"--mbr needs --num-beams {least} or more to choose from.")

    def arguments(self, num_beams: int | None) -> dict[str, Any]:
        """Returns the arguments that make translation give all hypotheses of the beam; none without --mbr."""
        beams = num_beams or BEAMS
        return {} if self.mbr is None else {"num_beams": beams, "num_return_sequences": beams, "scores": True}

    def translator(self, translator: "LineTranslator", kept: int = 1) -> "LineTranslator":
        """Returns a translator that chooses among another's hypotheses; without --mbr, the other itself."""
        if self.mbr is None:
            return translator
        from vanilla_transformer.translation.minimum_bayes_risk import MinimumBayesRiskTranslator

        return MinimumBayesRiskTranslator(**vars(translator), utility=self.mbr, kept=kept)

    def settings(self) -> dict[str, Any]:
        """Returns the settings on which translations depend, by the names of the options."""
        return {} if self.mbr is None else {"mbr": self.mbr}
