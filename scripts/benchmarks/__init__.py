"""Benchmarks beside what a user would take instead; what they measured is in `results/`."""
