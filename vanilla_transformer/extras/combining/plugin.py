"""Decoding by several models, and the choice among several hypotheses of one."""

SEAMS = {
    "ensemble": {"mean": "ensemble:as_ensemble"},
    "options": {"rescoring": "rescoring_options:RescoringOptions", "terms": "term_options:TermOptions"},
}
