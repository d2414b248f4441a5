"""The dictionary of Carnegie Mellon University as a corpus, and the error rates of pronunciations."""
