"""A page on which a model computes live: every number of it, in the paper's order."""
