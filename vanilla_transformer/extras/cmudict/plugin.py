"""`cmudict:train`, `cmudict:dev` and `cmudict:test`, a corpus that needs no file, and metrics of pronunciations."""

SEAMS = {
    "text": {"cmudict": "dictionary:read_cmudict"},
    "item_metric": {"wer": "error_rates:word_error_rate", "per": "error_rates:phoneme_error_rate"},
}
