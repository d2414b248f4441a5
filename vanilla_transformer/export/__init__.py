"""Conversion of other systems' models to ours, and of ours to other systems, with the same numbers."""
