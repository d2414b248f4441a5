"""Tools to look inside a model: its attention, as data and as pictures, word alignments, sizes beside the paper's."""

from vanilla_transformer.inspection.alignment import Alignment, AlignmentHeads, alignments
from vanilla_transformer.inspection.alignment_heads import choose_alignment_heads, save_alignment_heads
from vanilla_transformer.inspection.pieces import Pieces
from vanilla_transformer.inspection.plots import plot_attention, plot_heads
from vanilla_transformer.inspection.recording import Attention, Kind, attention, attention_page

__all__ = [
    "Alignment",
    "AlignmentHeads",
    "Attention",
    "Kind",
    "Pieces",
    "alignments",
    "attention",
    "attention_page",
    "choose_alignment_heads",
    "plot_attention",
    "plot_heads",
    "save_alignment_heads",
]
