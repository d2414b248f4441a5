"""Commands that show the size and cost of a model, its attention and its alignments."""

GROUP = "Look inside"
SEAMS = {
    "command": {
        "info": "commands.info:Info",
        "attend": "commands.attend:Attend",
        "align": "commands.align:Align",
    },
    "options": {"alignment": "alignment_options:AlignmentOptions"},
}
