"""Translations and texts drawn at random from a model's probabilities."""

from vanilla_transformer.extras.sampling.samples import Sampling

__all__ = ["Sampling"]
