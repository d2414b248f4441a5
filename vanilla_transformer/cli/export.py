"""`vanilla-transformer export`: a model for other systems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Model, OptionalText, UsageError, refuse_full_directory
from vanilla_transformer.cli.streams import warn

_PACKAGES: dict[str, list[str]] = {
    "ctranslate2": ["ctranslate2"],
    "onnx": ["onnx", "onnxscript", "onnxruntime"],
    "marian": [],
}


@dataclass(frozen=True)
class Export:
    """Write a model for CTranslate2, ONNX Runtime or Marian's classes, with its tokenizer and how to run it.

    CTranslate2 and ONNX Runtime compute the same numbers without torch. `marian` writes a MarianMTModel,
    which any installation of transformers loads without this package.
    """

    model: Model
    """Directory or Hub id of a model."""
    to: Literal["ctranslate2", "onnx", "marian"]
    """System to write the model for."""
    output: Annotated[Path | None, Positional, arg(metavar="OUTPUT", help_behavior_hint="")] = None
    """Directory for the export; it must be empty or not exist (default: here, MODEL-onnx and so on)."""
    quantization: OptionalText = None
    """How numbers are stored: float32 (the default), int8, and for ctranslate2 int16, float16, bfloat16 too."""

    def run(self) -> None:
        """Exports and prints the directory."""
        output = self.output or Path(f"{Path(self.model).name}-{self.to}")
        refuse_full_directory(output)
        for package in _PACKAGES[self.to]:
            if find_spec(package) is None:
                raise UsageError(
                    f"The package {package} is not installed: run `pip install 'vanilla-transformer[export]'`."
                )
        write, quantizations = self._writer()
        quantization = self.quantization or "float32"
        if quantization not in quantizations:
            raise UsageError(f"--quantization {quantization}: for {self.to} there is {', '.join(quantizations)}.")
        from vanilla_transformer.translation import load_config, load_model

        load_config(self.model)
        model, tokenizer = load_model(self.model, device="cpu")
        for remark in write(model, tokenizer, output, quantization):
            warn(remark)
        print(output)

    def _writer(self) -> tuple[Callable[[Any, Any, Path, str], list[str]], Sequence[str]]:
        """What writes the files and says what a user has to know, and the quantizations it has."""
        if self.to == "onnx":
            from vanilla_transformer.export import to_onnx

            return to_onnx.export_onnx, to_onnx.QUANTIZATIONS
        if self.to == "ctranslate2":
            from vanilla_transformer.export import to_ctranslate2

            return to_ctranslate2.export_ctranslate2, to_ctranslate2.QUANTIZATIONS
        from vanilla_transformer.export.conversion import export_marian

        return export_marian, ("float32",)
