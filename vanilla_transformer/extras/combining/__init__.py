"""Combinations of models or hypotheses: ensembles and minimum Bayes risk."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vanilla_transformer.extras.combining.ensemble import (
        EnsembleForConditionalGeneration as EnsembleForConditionalGeneration,
    )

__all__ = ["EnsembleForConditionalGeneration"]


def __getattr__(name: str) -> Any:
    # The options import this package, and their help must not wait for torch.
    if name in __all__:
        from vanilla_transformer.extras.combining import ensemble

        return getattr(ensemble, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
