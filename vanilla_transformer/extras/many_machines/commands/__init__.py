"""Commands for numbered tasks."""
