"""Text written by language models."""
