"""Removal of pairs that teach nothing from corpora."""

GROUP = "Data"
SEAMS = {"command": {"clean": "command:Clean"}}
