"""Training data written by models: back-translation, sequence-level and word-level distillation."""

GROUP = "Train better"
SEAMS = {
    "command": {
        "back-translate": "commands.synthetic_pairs:BackTranslate",
        "distil": "commands.synthetic_pairs:Distil",
        "soft-targets": "commands.soft_targets:SoftTargets",
    },
    "recipe": {"distillation": "distillation:Distillation"},
}
