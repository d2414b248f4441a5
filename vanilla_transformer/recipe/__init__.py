"""Recipes: what a run is asked for, and what the data and the device decide of the rest."""
