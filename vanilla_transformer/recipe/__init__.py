"""Recipes: the settings given for a run, and the defaults chosen from the data and the device."""
