"""Training data written by models."""
