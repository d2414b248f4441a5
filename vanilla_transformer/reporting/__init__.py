"""Reports of a run: log, summary, curves, model card."""
