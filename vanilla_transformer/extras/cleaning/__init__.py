"""Removal of pairs that teach nothing from corpora."""
