"""Training data that models write: back-translation, distillation by sequences and by words."""

GROUP = "Train better"
SEAMS = {
    "command": {
        "back-translate": "commands.synthetic_pairs:BackTranslate",
        "distil": "commands.synthetic_pairs:Distil",
        "soft-targets": "commands.soft_targets:SoftTargets",
    },
    "recipe": {"distillation": "distillation:Distillation"},
}
