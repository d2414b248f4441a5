"""Experiments on the paper's claims, each a command of its own."""
