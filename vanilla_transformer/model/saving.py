"""What lets a saved model be loaded where this package is not installed, and models of earlier versions here."""

import os
import re
from collections.abc import MutableMapping
from typing import Any, ClassVar

from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming

# In the first models the embedding that all share was the encoder's.
_OLD_NAME = re.compile(r"(^|\.)encoder\.embed_tokens\.weight$")
register_checkpoint_conversion_mapping(
    "vanilla_transformer", [WeightRenaming("encoder.embed_tokens.weight", "shared.weight")], overwrite=True
)


def rename_old_weights(weights: MutableMapping[str, Any]) -> None:
    """Gives weights that were saved under earlier names those that they have now."""
    for name in list(weights):
        if _OLD_NAME.search(name):
            weights[_OLD_NAME.sub(r"\1shared.weight", name)] = weights.pop(name)


class SavedWithItsCode:
    """A model that is saved with the code of its classes and of its pipelines.

    Attributes:
        hub_classes: The class for each Auto class, by its file.
        hub_pipelines: The pipelines that a saved configuration names, where the library has none.
    """

    config: Any
    hub_classes: ClassVar[dict[str, str]] = {}
    hub_pipelines: ClassVar[dict[str, dict[str, Any]]] = {}

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does: with the files of the classes, as they are registered for the Auto classes.

        The library names one Auto class for a model; the others and the pipelines are named here.
        """
        if self.hub_classes:
            self.config.auto_map = {**self.hub_classes, **(getattr(self.config, "auto_map", None) or {})}
        if self.hub_pipelines:
            self.config.custom_pipelines = self.hub_pipelines
        # In its "original format" the library would bring the names of earlier versions back.
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


__all__ = ["SavedWithItsCode", "rename_old_weights"]
