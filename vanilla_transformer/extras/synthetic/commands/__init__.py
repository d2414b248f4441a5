"""Commands that make training data with models."""
