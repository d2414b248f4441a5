"""Tools to look inside a model: its attention, as data and as pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vanilla_transformer.inspection.alignment import Alignment as Alignment
    from vanilla_transformer.inspection.alignment import AlignmentError as AlignmentError
    from vanilla_transformer.inspection.alignment import AlignmentHeads as AlignmentHeads
    from vanilla_transformer.inspection.alignment import alignments as alignments
    from vanilla_transformer.inspection.alignment_heads import (
        Choice as Choice,
    )
    from vanilla_transformer.inspection.alignment_heads import (
        choose_alignment_heads as choose_alignment_heads,
    )
    from vanilla_transformer.inspection.alignment_heads import (
        save_alignment_heads as save_alignment_heads,
    )
    from vanilla_transformer.inspection.alignment_heads import (
        spread as spread,
    )
    from vanilla_transformer.inspection.pieces import Pieces as Pieces
    from vanilla_transformer.inspection.plots import (
        plot_attention as plot_attention,
    )
    from vanilla_transformer.inspection.plots import (
        plot_heads as plot_heads,
    )
    from vanilla_transformer.inspection.recording import KINDS as KINDS
    from vanilla_transformer.inspection.recording import Attention as Attention
    from vanilla_transformer.inspection.recording import InspectionError as InspectionError
    from vanilla_transformer.inspection.recording import Kind as Kind
    from vanilla_transformer.inspection.recording import attention as attention
    from vanilla_transformer.inspection.recording import attention_page as attention_page

_HOMES = {
    "Alignment": "alignment",
    "AlignmentError": "alignment",
    "AlignmentHeads": "alignment",
    "Attention": "recording",
    "Choice": "alignment_heads",
    "InspectionError": "recording",
    "KINDS": "recording",
    "Kind": "recording",
    "Pieces": "pieces",
    "alignments": "alignment",
    "attention": "recording",
    "attention_page": "recording",
    "choose_alignment_heads": "alignment_heads",
    "plot_attention": "plots",
    "plot_heads": "plots",
    "save_alignment_heads": "alignment_heads",
    "spread": "alignment_heads",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Commands import this package, and their help must not wait for torch and matplotlib.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
