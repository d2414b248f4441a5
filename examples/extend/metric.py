"""Adds a metric: the share of translations that equal a reference once case is ignored.

    python examples/extend/metric.py my-model test.en test.de

Registered, a metric has a name for recipes, for `evaluate`, and for the card of a model. A process that scores by it
has to import this file first.
"""

import argparse
from collections.abc import Sequence

from vanilla_transformer import evaluate
from vanilla_transformer.evaluation.metrics import METRICS, Metric


def caseless_match(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """The percentage of predictions that equal one of their references in lower case, and how it was computed."""
    hits = sum(
        prediction.lower() in [reference.lower() for reference in accepted]
        for prediction, accepted in zip(predictions, references, strict=True)
    )
    return 100 * hits / len(predictions), f"count:caseless|items:{len(predictions)}"


METRICS["caseless_match"] = Metric(caseless_match)


def main(argv: Sequence[str] | None = None) -> None:
    """Scores a model by BLEU and by the metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "source", "target"):
        parser.add_argument(name)
    arguments = parser.parse_args(argv)
    data = (arguments.source, arguments.target)
    for score in evaluate(arguments.model, data, metrics=("sacrebleu", "caseless_match")).scores.values():
        print(score)


if __name__ == "__main__":
    main()
