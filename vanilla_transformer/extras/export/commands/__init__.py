"""The commands to other runtimes and from other systems."""
