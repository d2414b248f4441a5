"""Agreement between the processes of a run."""
