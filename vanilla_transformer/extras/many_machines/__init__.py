"""Work in numbered tasks, each done by itself on any machine: translation, and corpora in shards of tokens."""
