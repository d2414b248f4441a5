"""Sub-word sampling: BPE-dropout, and sampling from a unigram model."""

SEAMS = {"recipe": {"sampling": "recipe_block:SubwordSampling"}}
