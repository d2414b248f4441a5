"""Commands that look at attention."""
