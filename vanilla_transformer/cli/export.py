"""`vanilla-transformer export`: writes a model for other runtimes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.arguments import Model
from vanilla_transformer.cli.files import check_new_directory, warn
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.options import OptionalText

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Export:
    """Export a model, with its tokenizer, to CTranslate2, ONNX Runtime or transformers' MarianMTModel.

    CTranslate2 and ONNX Runtime run without torch; the folder's README has a program that translates. `marian` writes
    a MarianMTModel, which transformers loads without this package.
    """

    #: Model directory or Hub id.
    model: Model
    #: Target runtime.
    to: Literal["ctranslate2", "onnx", "marian"]
    #: Output directory; must be empty or not exist (default: MODEL-onnx etc. in the current directory).
    output: Annotated[Path | None, Positional, arg(metavar="[OUTPUT]", help_behavior_hint="")] = None
    #: Type of the parameters: float32, int8, or for ctranslate2 also int16, float16, bfloat16 (default: float32).
    quantization: Annotated[OptionalText, arg(metavar="TYPE")] = None

    def run(self) -> None:
        """Exports the model and prints the directory."""
        from vanilla_transformer.translation import load_model

        output = self.output or Path(f"{Path(self.model).name}-{self.to}")
        check_new_directory(output)
        write, quantizations = self._writer()
        quantization = self.quantization or "float32"
        if quantization not in quantizations:
            raise RecipeError(
                f"--quantization {quantization} is not available for {self.to}: use {', '.join(quantizations)}."
            )
        model, tokenizer = load_model(self.model, device="cpu")
        with atomic_directory(output) as place:
            remarks = write(model, tokenizer, place, quantization)
        for remark in remarks:
            warn(remark)
        print(output)

    def _writer(
        self,
    ) -> "tuple[Callable[[PreTrainedModel, PreTrainedTokenizerBase, Path, str], list[str]], Sequence[str]]":
        """Returns the function that writes the files and returns remarks for the user, and its quantizations."""
        if self.to == "onnx":
            from vanilla_transformer.export import to_onnx

            return to_onnx.export_onnx, to_onnx.QUANTIZATIONS
        if self.to == "ctranslate2":
            from vanilla_transformer.export import to_ctranslate2

            return to_ctranslate2.export_ctranslate2, to_ctranslate2.QUANTIZATIONS
        from vanilla_transformer.export.conversion import export_marian

        return export_marian, ("float32",)
