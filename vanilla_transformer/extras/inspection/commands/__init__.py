"""The commands that look at attention."""
