"""What a run tells: log, trackers, summary, curves, model card."""
