"""Section 6.3: trees as a target language, and the score of Table 4."""

SEAMS = {
    "file": {".mrg": "trees:read_mrg"},
    "metric": {"bracketing": "bracketing:bracketing_f1"},
}
