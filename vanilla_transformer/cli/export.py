"""`vanilla-transformer export`: writes a model for other runtimes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.atomic_files import atomic_directory
from vanilla_transformer.cli.arguments import Model
from vanilla_transformer.cli.files import check_new_directory, warn


@dataclass(frozen=True)
class Export:
    """Export a model, with its tokenizer, to CTranslate2 or ONNX Runtime.

    Both run without torch; the folder's README has a program that translates. For transformers alone, `convert` writes
    a MarianMTModel.
    """

    #: Model directory or Hub id.
    model: Model
    #: Target runtime.
    to: Literal["ctranslate2", "onnx"]
    #: Output directory; must be empty or not exist (default: MODEL-onnx etc. in the current directory).
    output: Annotated[Path | None, Positional, arg(metavar="[OUTPUT]", help_behavior_hint="")] = None
    #: Type of the parameters: float32, int8, or for ctranslate2 also int16, float16, bfloat16 (default: float32).
    quantization: Annotated[str, arg(metavar="TYPE", help_behavior_hint="")] = "float32"

    def run(self) -> None:
        """Exports the model and prints the directory."""
        output = self.output or Path(f"{Path(self.model).resolve().name}-{self.to}")
        check_new_directory(output)
        from vanilla_transformer.loading.models import load_model

        model, tokenizer = load_model(self.model, device="cpu")
        with atomic_directory(output) as place:
            if self.to == "onnx":
                from vanilla_transformer.export.to_onnx import export_onnx

                for remark in export_onnx(model, tokenizer, place, self.quantization):
                    warn(remark)
            else:
                from vanilla_transformer.export.to_ctranslate2 import export_ctranslate2

                export_ctranslate2(model, tokenizer, place, self.quantization)
        print(output)
