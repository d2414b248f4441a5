"""What lets a saved model be loaded where this package is not installed."""

import os
from typing import Any

from .pipeline_vanilla_transformer import custom_pipelines

_AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
}


class SavedWithItsCode:
    """A model that is saved with the code of its classes and of its pipelines."""

    config: Any

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does: with the files of the classes, as they are registered for the Auto classes.

        The library names one Auto class for a model; the others and the pipelines are named here.
        """
        self.config.auto_map = {**_AUTO_MAP, **(getattr(self.config, "auto_map", None) or {})}
        self.config.custom_pipelines = custom_pipelines()
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


__all__ = ["SavedWithItsCode"]
