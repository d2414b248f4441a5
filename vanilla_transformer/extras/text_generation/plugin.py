"""Continuations of prompts by language models."""

GROUP = "Use"
SEAMS = {"command": {"generate": "command:Generate"}}
