"""Models and tokenizers from a directory or the Hub, Marian ones as ours and ours as theirs."""
