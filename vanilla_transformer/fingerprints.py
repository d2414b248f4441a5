"""Fingerprints that distinguish settings, texts and files. Some are stored: changing them would invalidate those."""

import hashlib
import json
from pathlib import Path
from typing import Any

_BYTES = 16


def fingerprint_settings(settings: Any) -> str:
    """Returns the fingerprint of settings that JSON can hold."""
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=_BYTES).hexdigest()


def fingerprint_file(path: Path) -> str:
    """Returns the fingerprint of the contents of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[: 2 * _BYTES]
