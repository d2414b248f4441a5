"""Reports of a run: log, trackers, summary, curves, model card."""
