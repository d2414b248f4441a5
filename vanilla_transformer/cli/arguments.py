"""Options that several commands share: the model, where and how it computes, the search."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from tyro.conf import FlagCreatePairsOff, Positional, arg

from vanilla_transformer.errors import SettingError
from vanilla_transformer.options import OptionalBeams, OptionalCount, OptionalLength, OptionalPenalty, OptionalText

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vanilla_transformer.translation import Translator

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


@dataclass(frozen=True)
class Computing:
    """Device and precision."""

    #: Type of parameters and arithmetic; auto uses bfloat16 on CPUs that are faster with it, and otherwise float32.
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: cpu, cuda, cuda:1, mps, ... (default: an accelerator if there is one).
    device: OptionalText = None

    def load(self, model: str, *, translates: bool = False) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """Loads the model and its tokenizer, in the requested precision and on the requested device.

        Args:
            translates: Whether to refuse models of the package that do not translate.
        """
        import torch

        from vanilla_transformer.loading.models import load_model
        from vanilla_transformer.machine import fastest_dtype, keep_freed_memory

        keep_freed_memory()
        # Must be set before the first matrix product.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PRIMITIVES))
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        loaded, tokenizer = load_model(model, device=self.device, dtype=dtype, translates=translates)
        if self.precision == "auto":
            loaded = cast(Any, loaded).to(fastest_dtype(loaded.config.d_model, loaded.device))
        return loaded, tokenizer


@dataclass(frozen=True)
class BatchedComputing(Computing):
    """Device, precision and size of batches."""

    #: Tokens per batch, padding included; in translation, source tokens (default: 2,048 on a CPU, 16,384 elsewhere).
    batch_tokens: OptionalCount = None


@dataclass(frozen=True)
class DecodingOptions(BatchedComputing):
    """Search, device and precision."""

    #: Beam size; 1 for greedy search (default: the model's; section 6.1: 4).
    num_beams: OptionalBeams = None
    #: Exponent of the length penalty (default: the model's; section 6.1: 0.6).
    length_penalty: OptionalPenalty = None
    #: Maximum tokens a translation may have beyond its source (default: the model's; section 6.1: 50).
    max_length_beyond_source: OptionalLength = None
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "int8"],
        arg(
            help="Type of matrices and arithmetic; int8 is for CPUs only. auto uses it there for a Transformer of a "
            "width of 256 or more, bfloat16 for other models on CPUs that are faster with it, and otherwise float32."
        ),
    ] = "auto"  # type: ignore[assignment]
    #: Minimum Bayes risk: write the hypothesis that agrees most with all others of the beam, by sacreBLEU's sentence
    #: chrF or BLEU. --num-beams is the number of hypotheses (default: 32). --nbest then sorts by their mean agreement
    #: and writes it.
    mbr: Annotated[Literal["chrf", "bleu"] | None, arg(metavar="chrf|bleu", help_behavior_hint="")] = None

    @property
    def search(self) -> dict[str, Any]:
        """The options of the search that were given; the model's own settings apply otherwise."""
        names = "num_beams", "length_penalty", "max_length_beyond_source"
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def settings(self, nbest: int | None = None) -> dict[str, Any]:
        """Returns the arguments of `Translator`: for one translation of a line, or the `nbest` with scores."""
        beams = self.num_beams or MBR_BEAMS if self.mbr else self.num_beams
        chosen = {"num_beams": beams, "num_return_sequences": beams if self.mbr else nbest}
        given = self.search | {name: value for name, value in chosen.items() if value is not None}
        return given | {"precision": self.precision, "batch_tokens": self.batch_tokens}

    def translator(self, models: Sequence[str], nbest: int | None = None) -> "Translator":
        """Loads a model, or the ensemble of several, and returns its translator."""
        from vanilla_transformer.machine import keep_freed_memory
        from vanilla_transformer.translation import Translator

        keep_freed_memory()
        translator = Translator(models, device=self.device, **self.settings(nbest))
        min_beams = max(nbest or 1, 2)  # Greedy search has one translation.
        if (self.mbr or nbest is not None) and translator.num_beams < min_beams:
            raise SettingError(f"{'--mbr' if self.mbr else f'--nbest {nbest}'} needs --num-beams {min_beams} or more.")
        return translator

    def scored_settings(self, precision: str) -> dict[str, object]:
        """Returns settings that affect translations but are not in the model: search, and precision if not float32."""
        others = {"mbr": self.mbr, "precision": precision}
        return self.search | {name: value for name, value in others.items() if value not in (None, "float32")}
