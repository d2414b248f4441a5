"""Checkpoints: the store, the background writer and averaging (6.1)."""
