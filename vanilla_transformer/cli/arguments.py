"""Options that several commands share: the model, where and how it computes, the search."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from tyro.conf import FlagCreatePairsOff, Positional, arg

from vanilla_transformer.errors import RecipeError
from vanilla_transformer.options import HINT, OptionalCount, OptionalText, number

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vanilla_transformer.translation import LineTranslator

Model = Annotated[str, Positional, arg(metavar="MODEL")]
Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]
# The help text states the default.
OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
Resume = Annotated[
    Flag,
    arg(
        help="From file to file: count the lines that are in the output and go on, with the same bytes at the end. "
        "Everything else in the command must be as before: it is not compared."
    ),
]
# Kinds of products, by shape, whose code oneDNN caches, up to half a megabyte each. Decoding has a new one for each
# number of rows: with oneDNN's own limit of 1,024 a process grows for tens of thousands of lines.
PRIMITIVES = 32
# The beam of --mbr: the model's own gives little to choose from.
MBR_BEAMS = 32
# Scores name a precision in which processors differ.
_INT8_OF_7_BITS = "int8 with weights of 7 bits"
_BFLOAT16_IN_FLOAT32 = "bfloat16 multiplied in float32"


@contextmanager
def loading_libraries() -> Iterator[None]:
    """Looks for no garbage while the libraries load in its body, nor later among their objects, which stay to the end.

    It would take a third of the time until a first translation.
    """
    if "transformers.modeling_utils" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@dataclass(frozen=True)
class Computing:
    """Device and precision."""

    #: Type of parameters and arithmetic; auto uses bfloat16 on CPUs that are faster with it, and otherwise float32.
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: cpu, cuda, cuda:1, mps, ... (default: an accelerator if there is one).
    device: OptionalText = None

    @loading_libraries()
    def load(self, model: str, *, translates: bool = True) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """Loads the model and its tokenizer, in the requested precision and on the requested device.

        Args:
            translates: Whether to refuse models of the package that do not translate.
        """
        import torch

        from vanilla_transformer.machine import keep_freed_memory
        from vanilla_transformer.translation.loading import load_model

        keep_freed_memory()
        # Must be set before the first matrix product.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRIMITIVES))
        try:
            torch.zeros(1, device=self.device).item()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0]
            raise RecipeError(f"--device {self.device} cannot be used here: {reason}") from error
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        loaded, tokenizer = load_model(model, device=self.device, dtype=dtype, translates=translates)
        if self.precision == "auto":
            from vanilla_transformer.engine.cpu import fastest_dtype

            loaded = cast(Any, loaded).to(fastest_dtype(loaded.config.d_model, loaded.device))
        return loaded, tokenizer

    def announce(self, model: "PreTrainedModel") -> None:
        """Reports the chosen precision on standard error if it is neither the requested one nor float32."""
        taken = self.taken(model)
        if taken not in (self.precision, "float32"):
            reason = "8 would be wrong on this processor" if taken == _INT8_OF_7_BITS else "which is faster here"
            print(f"Precision: {taken}, {reason}.", file=sys.stderr)

    def taken(self, model: "PreTrainedModel") -> str:
        """Returns the precision in which a loaded model computes on this processor."""

        from vanilla_transformer.engine.cpu import computing_dtype, saturates

        if self.precision == "int8":
            return _INT8_OF_7_BITS if saturates() else "int8"
        if computing_dtype(model.dtype, model.device) != model.dtype:
            return _BFLOAT16_IN_FLOAT32
        return str(model.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class BatchedComputing(Computing):
    """Device, precision and size of batches."""

    #: Tokens per batch, padding included; in translation, source tokens (default: 2,048 on a CPU, 16,384 elsewhere).
    batch_tokens: OptionalCount = None


@dataclass(frozen=True)
class Decoding(BatchedComputing):
    """Search, device and precision."""

    #: Beam size; 1 for greedy search (default: the model's; section 6.1: 4).
    num_beams: Annotated[int | None, number(int, 1, 10_001), HINT] = None
    #: Exponent of the length penalty (default: the model's; section 6.1: 0.6).
    length_penalty: Annotated[float | None, number(float, -10, 10), HINT] = None
    #: Maximum tokens a translation may have beyond its source (default: the model's; section 6.1: 50).
    max_length_beyond_source: Annotated[int | None, number(int, 0, 1_000_001), HINT] = None
    #: Type of parameters and arithmetic; int8 is for CPUs only. auto uses bfloat16 on CPUs that are faster with it,
    #: and otherwise float32.
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"  # type: ignore[assignment]
    #: Minimum Bayes risk: write the hypothesis that agrees most with all others of the beam, by sacreBLEU's sentence
    #: chrF or BLEU. --num-beams is the number of hypotheses (default: 32). --nbest then sorts by their mean agreement
    #: and writes it.
    mbr: Annotated[Literal["chrf", "bleu"] | None, arg(metavar="chrf|bleu", help_behavior_hint="")] = None

    def arguments(self, nbest: int | None = None) -> dict[str, object]:
        """Returns the arguments of `translate_lines`; the model's own settings apply otherwise.

        Raises:
            RecipeError: The beam is too small to choose from.
        """
        given = self._given("batch_tokens") | ({"quantization": "int8"} if self.precision == "int8" else {})
        if self.mbr is None:
            return given
        beams, least = self.num_beams or MBR_BEAMS, max(nbest or 1, 2)
        if beams < least:
            raise RecipeError(f"--mbr needs --num-beams {least} or more to choose from.")
        return given | {"num_beams": beams, "num_return_sequences": beams, "scores": True}

    def choosing(self, translator: "LineTranslator", kept: int = 1) -> "LineTranslator":
        """Returns a translator that chooses among another's hypotheses; without --mbr, the other itself."""
        if self.mbr is None:
            return translator
        from vanilla_transformer.translation.minimum_bayes_risk import MinimumBayesRiskTranslator

        return MinimumBayesRiskTranslator(**vars(translator), utility=self.mbr, kept=kept)

    def settings(self, model: "PreTrainedModel") -> dict[str, object]:
        """Returns settings that affect translations but are not in the model: search, and precision if not float32."""
        taken = self.taken(model)
        return self._given("mbr") | ({} if taken == "float32" else {"precision": taken})

    def _given(self, *others: str) -> dict[str, object]:
        """Returns the options of the search, and these others, that are given."""
        names = "num_beams", "length_penalty", "max_length_beyond_source", *others
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def load_models(
    models: Sequence[str], computing: Computing, *, translates: bool = True
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """Loads the model and its tokenizer, or the ensemble of several, with the first one's tokenizer.

    Args:
        translates: Whether to refuse a single model of the package that does not translate.
    """
    if len(models) == 1:
        return computing.load(models[0], translates=translates)
    found = [computing.load(model) for model in models]
    if len({model.dtype for model, _ in found}) > 1:
        # The fastest type differs, and all must compute in one.
        found = [replace(computing, precision="float32").load(model) for model in models]
    from vanilla_transformer.translation.ensemble import as_ensemble

    return as_ensemble([(name, *model_of) for name, model_of in zip(models, found, strict=True)]), found[0][1]
