"""Comparison of models: equal tokens for a text, outputs that can be combined."""

import json
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase


def difference_of_vocabularies(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """Names a difference between two tokenizers; None if they read and write the same ids."""
    ids, theirs = one.get_vocab(), other.get_vocab()
    if len(theirs) != len(ids):
        return f"one has {len(ids):,} entries and the other {len(theirs):,}"
    if theirs != ids:
        piece = min((key for key in ids if theirs.get(key) != ids[key]), key=ids.__getitem__)
        return f"{piece!r} is {ids[piece]} in one and {theirs.get(piece, 'missing')} in the other"
    return None if _segmentation(one) == _segmentation(other) else "they split text in different ways"


def difference_in(one: PreTrainedConfig, other: PreTrainedConfig, fields: tuple[str, ...]) -> str | None:
    """Names the first of these fields in which two configurations differ, or None."""
    for name in fields:
        mine, theirs = (getattr(config, name, None) for config in (one, other))
        if mine != theirs:
            return f"{name} is {mine} in one and {theirs} in the other"
    return None


def _segmentation(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Returns the parts of a tokenizer that turn text into pieces, and pieces into text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer)
    parts = json.loads(backend.to_str())
    # These two change with each use.
    return {name: part for name, part in parts.items() if name not in ("padding", "truncation")}
