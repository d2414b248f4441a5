"""Tables in text files: TSV, CSV and JSONL."""
