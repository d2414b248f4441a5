"""Corpora without the pairs that teach nothing."""

GROUP = "Data"
SEAMS = {"command": {"clean": "command:Clean"}}
