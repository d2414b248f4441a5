"""Options of `translate` and `evaluate` for choosing among several translations of a line."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vanilla_transformer.cli.arguments import OptionalInt, UsageError, at_least_one
from vanilla_transformer.cli.decoding import Decoding

if TYPE_CHECKING:
    from vanilla_transformer.extras.combining.rescoring import Rescorer
    from vanilla_transformer.translation.lines import Translator

# The number of candidates if neither --candidates nor --num-beams is given.
CANDIDATES = 32
_MBR = "mbr"


@dataclass(frozen=True)
class RescoringOptions:
    """Rescoring: choose among several translations of a line."""

    rescore: Annotated[tuple[str, ...], arg(metavar="mbr|MODEL [MODEL ...]", help_behavior_hint="")] = ()
    """Choose one of the beam's hypotheses (with --sample and mbr, one of several samples).
    With mbr, minimum Bayes risk: the one that agrees most with all others.
    With models: the one with the highest sum of its score in the search and its score under each of these models;
    a score is the log-probability divided by the length penalty.
    The models may have any vocabulary and direction, such as --target-direction right-to-left;
    name them after the input. --nbest then sorts by the new scores and writes them."""
    candidates: OptionalInt = None
    """Translations per line to choose from, and the beam size (default: --num-beams, or else 32)."""
    utility: Literal["chrf", "bleu"] = "chrf"
    """Agreement of two translations for mbr: sacreBLEU's sentence score of one against the other."""

    excludes = dict.fromkeys((("rescore", "alignment"), ("rescore", "keep-markup")), "")

    def check(self, num_beams: int | None, nbest: int | None = None, *, samples: bool = False) -> None:
        """Raises UsageError for options that cannot be combined."""
        at_least_one(candidates=self.candidates)
        if not self.rescore:
            for name in ("candidates", "utility"):
                if getattr(self, name) != getattr(RescoringOptions, name):
                    raise UsageError(f"--{name} is for --rescore.")
            return
        self._check_models(samples)
        count = self.count(num_beams)
        if count < 2:
            raise UsageError("--rescore needs --candidates 2 or more to choose from.")
        if not samples and num_beams is not None and num_beams < count:
            raise UsageError(f"--candidates {count} needs --num-beams {count} or more.")
        if nbest is not None and nbest > count:
            raise UsageError(f"--nbest {nbest} needs --candidates {nbest} or more.")

    def _check_models(self, samples: bool) -> None:
        if self.rescore == (_MBR,):
            return
        if samples:
            raise UsageError(
                "--rescore MODEL needs the scores of a beam, which --sample does not have; --rescore mbr needs none."
            )
        if self.utility != RescoringOptions.utility:
            raise UsageError("--utility is for --rescore mbr.")
        for name in self.rescore:
            if name == _MBR:
                raise UsageError("--rescore is mbr or models, not both.")
            if Path(name).is_file():
                raise UsageError(
                    f"--rescore {name} is a file, not a model: put the input before --rescore, which takes "
                    "all names that follow it."
                )

    @property
    def models(self) -> tuple[str, ...]:
        """The models that rescore."""
        return () if self.rescore == (_MBR,) else self.rescore

    def count(self, num_beams: int | None) -> int:
        """Returns the number of translations of each line to choose among."""
        return self.candidates or num_beams or CANDIDATES

    def arguments(self, num_beams: int | None, *, samples: bool = False) -> dict[str, Any]:
        """Returns the arguments that make translation give candidates; none without --rescore."""
        if not self.rescore:
            return {}
        count = self.count(num_beams)
        beam = {} if samples else {"num_beams": num_beams or count, "scores": True}
        return {"num_return_sequences": count, **beam}

    def translator(self, candidates: "Translator", decoding: Decoding, kept: int = 1) -> "Translator":
        """Returns a translator that chooses among another's candidates; without --rescore, the other itself."""
        from vanilla_transformer.extras.combining.rescoring import RescoringTranslator

        return (
            RescoringTranslator(candidates, self._rescorer(candidates, decoding), kept) if self.rescore else candidates
        )

    def _rescorer(self, candidates: Any, decoding: Decoding) -> "Rescorer":
        if not self.models:
            from vanilla_transformer.extras.combining.minimum_bayes_risk import MinimumBayesRisk

            return MinimumBayesRisk(self.utility)
        from vanilla_transformer.extras.combining.model_rescoring import ModelRescorer

        return ModelRescorer.from_models(candidates, [(name, *decoding.load(name)) for name in self.models])

    def settings(self) -> dict[str, Any]:
        """Returns the settings on which translations depend, by the names of the options."""
        from vanilla_transformer.translation import model_fingerprint

        if not self.rescore:
            return {}
        return {**asdict(self), "rescore": " ".join(map(model_fingerprint, self.models)) or _MBR}
