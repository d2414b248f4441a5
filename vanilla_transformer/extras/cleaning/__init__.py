"""Corpora without the pairs that teach nothing."""
