"""Text and token classification: the tasks, their settings, forms of text and metrics."""

SEAMS = {
    "recipe": {"classification": "recipe_block:Classification"},
    "task": {
        "text-classification": "text_classification:TextClassification",
        "token-classification": "token_classification:TokenClassification",
    },
}
