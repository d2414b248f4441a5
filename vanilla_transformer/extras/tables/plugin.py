"""Tables in text files: TSV, CSV and JSONL."""

SEAMS = {"file": {".tsv": "readers:read_tsv", ".csv": "readers:read_csv", ".jsonl": "readers:read_jsonl"}}
