"""Tokenizers applied to lines of text."""
