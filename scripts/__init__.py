"""Benchmarks, experiments and stress tests, each run from the root of the repository."""
