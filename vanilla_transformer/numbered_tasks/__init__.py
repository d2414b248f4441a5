"""Work cut into numbered tasks that need nobody: their folder, workers on this machine, and engines on others."""
