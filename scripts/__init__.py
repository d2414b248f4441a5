"""Benchmarks and experiments, each run from the root of the repository."""
