"""Checkpoints: the store, the writer beside the loop, averages (6.1), states of sharded runs."""
