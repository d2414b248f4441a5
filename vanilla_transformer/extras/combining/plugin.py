"""Decoding by several models, and the choice among several hypotheses of one."""

SEAMS = {
    "options": {
        "ensemble": "ensemble_options:EnsembleOptions",
        "rescoring": "rescoring_options:RescoringOptions",
        "terms": "term_options:TermOptions",
    },
}
