"""Checkpoints: the store, the background writer, averaging (6.1) and the states of sharded runs."""
