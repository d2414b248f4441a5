"""Token classification: words and tags in CoNLL columns, the task, and its metrics."""

SEAMS = {"task": {"token-classification": "token_classification:TokenClassification"}}
