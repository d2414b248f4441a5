"""Translations and texts drawn at random from a model's probabilities."""
