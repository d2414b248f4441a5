"""Coordination of the processes of a run."""
