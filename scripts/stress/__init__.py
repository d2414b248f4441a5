"""Stress tests that search the package for silent errors: `python -m scripts.stress.NAME`."""
