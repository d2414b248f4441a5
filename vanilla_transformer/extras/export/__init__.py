"""Models of other systems as ours, and ours for other systems, with the same numbers."""
