"""Saves models so that they load without this package."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class SavedWithItsCode:
    """A model that is saved with the code of its classes and of its pipelines.

    Attributes:
        hub_classes: The class for each Auto class, by its file.
        hub_pipelines: The pipelines that a saved configuration names, because the library has none.
    """

    config: Any
    _tied_weights_keys: Any
    hub_classes: ClassVar[dict[str, str]] = {}
    hub_pipelines: ClassVar[dict[str, dict[str, Any]]] = {}

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does, with the files of the classes registered for the Auto classes.

        The library names only one Auto class per model; the others and the pipelines are named here.
        """
        if self.hub_classes:
            self.config.auto_map = {**self.hub_classes, **(getattr(self.config, "auto_map", None) or {})}
        if self.hub_pipelines:
            self.config.custom_pipelines = self.hub_pipelines
        weights = kwargs["state_dict"] if kwargs.get("state_dict") is not None else self.state_dict()  # type: ignore
        if not self._is_tied(weights):
            # The library leaves out names that share a weight, even where it will not tie them again.
            kwargs["state_dict"] = {name: weight.clone() for name, weight in weights.items()}
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        # safetensors writes files that only their owner may read, whatever the umask; give them the configuration's
        # mode.
        config = os.path.join(save_directory, "config.json")
        for weights in Path(save_directory).glob("*.safetensors") if os.path.isfile(config) else ():
            shutil.copymode(config, weights)

    def _is_tied(self, weights: Mapping[str, Any]) -> bool:
        """Tells whether all weights that loading ties together share their memory."""
        pairs = [(weights.get(one), weights.get(other)) for one, other in (self._tied_weights_keys or {}).items()]
        is_same = all(a is None or b is None or a.data_ptr() == b.data_ptr() for a, b in pairs)
        return is_same and self.config.tie_word_embeddings
