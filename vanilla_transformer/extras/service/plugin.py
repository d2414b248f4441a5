"""Translation for programs that answer requests: the package's own commands need nothing of it."""

from typing import Any

SEAMS: dict[str, Any] = {}
