"""Answers from a file to a file that survive any end of the process."""

from typing import Any

SEAMS: dict[str, Any] = {}
