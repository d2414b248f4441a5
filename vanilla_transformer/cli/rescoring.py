"""Options of `translate` for choosing among several translations of a line."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vanilla_transformer.cli.arguments import OptionalInt, UsageError, at_least_one

if TYPE_CHECKING:
    from vanilla_transformer.translation.lines import Translator

# Where neither they nor a beam were asked for.
CANDIDATES = 32


@dataclass(frozen=True)
class RescoringOptions:
    """What decides between several translations of a line."""

    rescore: Annotated[Literal["mbr"] | None, arg(metavar="mbr", help_behavior_hint="")] = None
    """Choose among the hypotheses of the beam, or with --sample among samples. mbr, minimum Bayes risk: the one that
    agrees most with all of them. With --nbest the best by that, with their scores."""
    candidates: OptionalInt = None
    """Translations of each line to choose among, and with a beam its width (default: --num-beams, or else 32)."""
    utility: Literal["chrf", "bleu"] = "chrf"
    """How much two translations agree: sacreBLEU's score of one sentence with the other for its reference."""

    def check(self, num_beams: int | None, nbest: int | None, samples: bool) -> None:
        """Raises UsageError for what makes no sense together."""
        at_least_one(candidates=self.candidates)
        if self.rescore is None:
            for name in ("candidates", "utility"):
                if getattr(self, name) != getattr(RescoringOptions, name):
                    raise UsageError(f"--{name} is for --rescore.")
            return
        count = self.count(num_beams)
        if count < 2:
            raise UsageError("--rescore chooses among --candidates, of which it needs 2 or more.")
        if not samples and num_beams is not None and num_beams < count:
            raise UsageError(f"--candidates {count} needs --num-beams {count} or more.")
        if nbest is not None and nbest > count:
            raise UsageError(f"--nbest {nbest} needs --candidates {nbest} or more.")

    def count(self, num_beams: int | None) -> int:
        """Translations of each line to choose among."""
        return self.candidates or num_beams or CANDIDATES

    def arguments(self, num_beams: int | None, samples: bool) -> dict[str, Any]:
        """What the translation is told to give candidates."""
        count = self.count(num_beams)
        beam = {} if samples else {"num_beams": num_beams or count, "scores": True}
        return {"num_return_sequences": count, **beam}

    def translator(self, candidates: "Translator", kept: int) -> "Translator":
        """The translator that chooses among what another gives."""
        from vanilla_transformer.evaluation.minimum_bayes_risk import MinimumBayesRisk
        from vanilla_transformer.translation.rescoring import RescoringTranslator

        return RescoringTranslator(candidates, MinimumBayesRisk(self.utility), kept)

    def settings(self) -> dict[str, Any]:
        """What translations depend on, by the names of the options."""
        return {} if self.rescore is None else asdict(self)
