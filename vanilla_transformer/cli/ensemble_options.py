"""The option of commands that take several models, and the loading of these models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from vanilla_transformer.cli.decoding import Computing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class EnsembleOptions:
    """Ensembles: several models of one vocabulary that choose each token together."""

    ensemble_mean: Annotated[Literal["probabilities", "log-probabilities"], arg(help_behavior_hint="")] = (
        "probabilities"
    )
    """Combination of several models: the mean of their probabilities (the default) or of their log-probabilities."""

    def load(
        self, models: Sequence[str], computing: Computing, *, translates: bool = True
    ) -> "tuple[PreTrainedModel, PreTrainedTokenizerFast]":
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

        named = [(name, *model_of) for name, model_of in zip(models, found, strict=True)]
        return as_ensemble(named, self.ensemble_mean), found[0][1]

    def settings(self, models: Sequence[str]) -> dict[str, Any]:
        """Returns the settings on which the results of several models depend, by the names of the options."""
        return {"ensemble_mean": self.ensemble_mean} if len(models) > 1 else {}
