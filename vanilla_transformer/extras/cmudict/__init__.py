"""The dictionary of Carnegie Mellon University as a corpus."""
