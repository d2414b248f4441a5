"""A page on which a model computes before the reader's eyes: every number of it, in the paper's order."""
