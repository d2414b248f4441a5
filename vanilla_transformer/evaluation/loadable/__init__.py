"""The package's metrics as metrics of the library `evaluate`, which load without network."""

from pathlib import Path


def metric_path(name: str) -> str:
    """The file that `evaluate.load` takes for a metric: `evaluate.load(metric_path("paper_bleu"), "fr")`.

    `compute(predictions=..., references=...)` takes one reference or a list of references per prediction, and returns
    the value in percent under the metric's name, and its `signature`.
    """
    from vanilla_transformer.evaluation import MetricError, check_names

    check_names([name])
    if ":" in name:
        metric, _, language = name.partition(":")
        raise MetricError(
            f"The language is the second argument: evaluate.load(metric_path('{metric}'), '{language}')."
        )
    return str(Path(__file__).with_name(f"{name}.py"))
