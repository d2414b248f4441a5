"""Corpora of text pairs, their preparation, and batches of about equal length (section 5.1)."""
