"""`vanilla-transformer export`: writes a model for other runtimes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.arguments import Model
from vanilla_transformer.cli.files import check_new_directory, warn
from vanilla_transformer.errors import RecipeError


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
    quantization: Annotated[str, arg(metavar="TYPE", help_behavior_hint="")] = "float32"

    def run(self) -> None:
        """Exports the model and prints the directory."""
        output = self.output or Path(f"{Path(self.model).name}-{self.to}")
        check_new_directory(output)
        if self.to == "marian" and self.quantization != "float32":
            raise RecipeError("--quantization is for ctranslate2 and onnx: marian has float32.")
        from vanilla_transformer.translation import load_model

        model, tokenizer = load_model(self.model, device="cpu")
        with atomic_directory(output) as place:
            if self.to == "onnx":
                from vanilla_transformer.export.to_onnx import export_onnx

                remarks = export_onnx(model, tokenizer, place, self.quantization)
            elif self.to == "ctranslate2":
                from vanilla_transformer.export.to_ctranslate2 import export_ctranslate2

                remarks = export_ctranslate2(model, tokenizer, place, self.quantization)
            else:
                from vanilla_transformer.export.conversion import export_marian

                remarks = export_marian(model, tokenizer, place)
        for remark in remarks:
            warn(remark)
        print(output)
