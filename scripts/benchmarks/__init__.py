"""Benchmarks against what a user would use instead; measurements are in `results/`."""
