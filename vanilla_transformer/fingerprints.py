"""Fingerprints that distinguish settings. Some are stored: changing them would invalidate those."""

import hashlib
import json

_BYTES = 16


def fingerprint_settings(settings: object) -> str:
    """Returns the fingerprint of settings that JSON can hold."""
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=_BYTES).hexdigest()
