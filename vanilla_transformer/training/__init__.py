"""Training: recipe, choices from the data, optimisation (5.3), the loop (5.2), checkpoints and averages (6.1)."""
