"""Training data that models write."""
