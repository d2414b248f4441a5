"""Commands that look at attention, alignments in translations, and the picture of an architecture."""

GROUP = "Look inside"
SEAMS = {
    "command": {"attend": "commands.attend:Attend", "align": "commands.align:Align"},
    "translation": {"alignment": "aligning_translator:AligningTranslator", "markup": "markup:MarkupTranslator"},
    "drawing": {"architecture": "architecture:plot_model"},
}
