"""Runs that are killed."""

from killing import train_until

__all__ = ["train_until"]
