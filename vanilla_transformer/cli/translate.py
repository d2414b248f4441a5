"""`vanilla-transformer translate`: one line out for each line in."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import (
    Flag,
    Model,
    OptionalFloat,
    OptionalInt,
    OptionalPath,
    OptionalText,
    UsageError,
    at_least_one,
)
from vanilla_transformer.cli.streams import (
    answer_promptly,
    open_output,
    progress_bar,
    read_input,
    refuse_same_file,
    warn,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from vanilla_transformer.translation import Translation


@dataclass(frozen=True)
class Decoding:
    """How translations are searched for, and with what."""

    num_beams: OptionalInt = None
    """Hypotheses kept at each step, 1 for greedy search (default: the model's; section 6.1: 4)."""
    length_penalty: OptionalFloat = None
    """Exponent of the length penalty (default: the model's; section 6.1: 0.6)."""
    max_length_beyond_source: OptionalInt = None
    """Tokens that a translation may have more than its source (default: the model's; section 6.1: 50)."""
    batch_tokens: OptionalInt = None
    """Source tokens translated together, padding included (default: 2,048 on a CPU, 16,384 elsewhere)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of weights and arithmetic."""
    device: OptionalText = None
    """cpu, cuda, cuda:1, mps, ... (default: an accelerator where there is one)."""
    threads: OptionalInt = None
    """Threads on the CPU (default: one for each core)."""

    def load(self, model: str) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """The model and its tokenizer, in the precision and on the device asked for."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        from vanilla_transformer.translation import load_model

        if Path(model).is_dir():
            # Reading is a matter of a moment; only a download is worth a bar.
            disable_progress_bar()
        at_least_one(threads=self.threads)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.device is not None:
            _check_device(self.device)
        return load_model(model, device=self.device, dtype=getattr(torch, self.precision))

    def arguments(self) -> dict[str, Any]:
        """What `translate_lines` is told; for the rest the model's own settings hold."""
        at_least_one(num_beams=self.num_beams, batch_tokens=self.batch_tokens)
        names = "num_beams", "length_penalty", "max_length_beyond_source", "batch_tokens"
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--device {device} is not to be had here: {reason}") from error


@dataclass(frozen=True)
class Translate:
    """Translate lines of text: one line out for each line in, always, in order.

    Empty lines come back empty. A line too long for the model is cut, translated and reported on standard error.
    Lines typed at a terminal or sent through a pipe are answered as they come.
    """

    model: Model
    """Directory or Hub id of the model."""
    input: Annotated[Path | None, Positional, arg(metavar="[INPUT]", help_behavior_hint="")] = None
    """File of UTF-8 text, plain or .gz (default: standard input)."""
    output: OptionalPath = None
    """File to write to (default: standard output)."""
    nbest: OptionalInt = None
    """Write so many translations of each line, best first, as `line ||| translation ||| score`; lines count from 0."""
    progress: Flag = False
    """Show the progress on standard error even if that is not a terminal."""
    decoding: Decoding = Decoding()

    def run(self) -> None:
        """Translates from the input to the output, and warns of each line that was too long."""
        from vanilla_transformer.translation import translate_lines

        at_least_one(nbest=self.nbest)
        refuse_same_file(self.input, self.output)
        arguments = self.decoding.arguments()
        lines = answer_promptly(read_input(self.input), self.input)
        model, tokenizer = self.decoding.load(self.model)
        arguments = self._nbest_arguments(model.generation_config.num_beams or 1) | arguments
        with open_output(self.output) as output, progress_bar(self.progress, "lines") as bar:
            translations = translate_lines(model, tokenizer, lines, progress=bar.update, **arguments)
            for number, translation in enumerate(translations):
                print(self._format(number, translation), file=output)
                if translation.truncated:
                    warn(f"line {number + 1} is too long for the model and was cut.")

    def _nbest_arguments(self, num_beams: int) -> dict[str, Any]:
        if self.nbest is None:
            return {}
        # Greedy search gives no scores.
        least = max(self.nbest, 2)
        if (self.decoding.num_beams or num_beams) < least:
            raise UsageError(f"--nbest {self.nbest} needs --num-beams {least} or more.")
        # For the scores the search keeps what it gave to every type at every step, so that batches must be small.
        return {"num_return_sequences": self.nbest, "output_scores": True, "batch_tokens": 512}

    def _format(self, number: int, translation: "Translation") -> str:
        if self.nbest is None:
            return translation.text
        return "\n".join(
            f"{number} ||| {hypothesis.text} ||| {hypothesis.score:.6f}" for hypothesis in translation.hypotheses
        )
