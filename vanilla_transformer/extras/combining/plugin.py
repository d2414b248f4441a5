"""Decoding by several models, and the choice among several hypotheses of one."""

SEAMS = {
    "options": {
        "ensemble": "ensemble_options:EnsembleOptions",
        "mbr": "minimum_bayes_risk_options:MinimumBayesRiskOptions",
    },
}
