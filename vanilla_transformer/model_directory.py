"""The files of a model directory, apart from those that `save_pretrained` writes."""

import json
from contextlib import suppress
from pathlib import Path

# The model card. Every model directory may contain one; the other files exist only if a run trained the model.
CARD = "README.md"
# The recipe of the run, with all its settings.
RECIPE = "recipe.yaml"
# The checkpoints of the run, one directory per checkpoint.
CHECKPOINTS = "checkpoints"
# One JSON object per line for each log line and each evaluation on `dev`.
METRICS = "metrics.jsonl"
LOG = "train.log"
CURVES = "learning_curves.png"
# The figures of the run. This file is written last, so the run is finished if it exists.
SUMMARY = "summary.json"


def read_metrics(directory: Path) -> list[dict[str, float]]:
    """Returns the records in METRICS, without a line that is incomplete because the process was killed."""
    file = directory / METRICS
    records = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        with suppress(ValueError):
            records.append(json.loads(line))
    return records
