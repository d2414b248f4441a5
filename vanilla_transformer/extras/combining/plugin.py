"""Answers that more than one model decides, and the choice among several of one."""

SEAMS = {
    "ensemble": {"mean": "ensemble:as_ensemble"},
    "options": {"rescoring": "rescoring_options:RescoringOptions"},
    "translation": {"terms": "terms:TermTranslator"},
}
