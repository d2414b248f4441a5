"""Words split at random, anew in each epoch."""
