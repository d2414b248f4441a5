"""Several corpora in one epoch, each with a share of its own."""
