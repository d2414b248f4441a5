"""Learning a vocabulary."""
