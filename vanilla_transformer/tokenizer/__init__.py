"""Learning of vocabularies."""
