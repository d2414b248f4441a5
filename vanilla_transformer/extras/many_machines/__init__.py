"""Numbered tasks that run independently on any machine: translation, and tokenizing corpora into shards."""
