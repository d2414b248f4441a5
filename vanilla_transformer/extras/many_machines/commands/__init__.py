"""The commands of training data that models write."""
