"""Look inside a model: what its heads attend to, as data and as pictures."""

from vanilla_transformer.inspection.alignment import Alignment, AlignmentError, AlignmentHeads, alignments
from vanilla_transformer.inspection.alignment_heads import Choice, choose_alignment_heads, save_alignment_heads, spread
from vanilla_transformer.inspection.architecture import plot_architecture, plot_model
from vanilla_transformer.inspection.page import attention_page
from vanilla_transformer.inspection.pieces import Pieces
from vanilla_transformer.inspection.plots import (
    plot_attention,
    plot_heads,
    plot_learning_rate,
    plot_position_similarity,
    plot_positions,
)
from vanilla_transformer.inspection.recording import KINDS, Attention, InspectionError, Kind, attention

__all__ = [
    "KINDS",
    "Alignment",
    "AlignmentError",
    "AlignmentHeads",
    "Attention",
    "Choice",
    "InspectionError",
    "Kind",
    "Pieces",
    "alignments",
    "attention",
    "attention_page",
    "choose_alignment_heads",
    "plot_architecture",
    "plot_attention",
    "plot_heads",
    "plot_learning_rate",
    "plot_model",
    "plot_position_similarity",
    "plot_positions",
    "save_alignment_heads",
    "spread",
]
