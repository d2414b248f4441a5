"""Corpora without the pairs that teach nothing."""

SEAMS = {"command": {"clean": "command:Clean"}}
