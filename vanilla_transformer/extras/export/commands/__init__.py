"""Commands that export to other runtimes and convert from other systems."""
