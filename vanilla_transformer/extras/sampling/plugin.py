"""Translations drawn at random, for example for synthetic text."""

SEAMS = {"options": {"sampling": "sampling_options:SamplingOptions"}}
