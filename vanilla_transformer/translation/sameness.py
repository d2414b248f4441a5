"""The same model: whether weights mean the same, text becomes the same tokens, distributions can be combined."""

import json
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from vanilla_transformer.model.direction import DIRECTIONS

# Fields of a configuration that training alone depends on: two runs of the same model may differ in these.
TRAINING_FIELDS = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing", "initializer_range")
# What the outputs of a head stand for.
_LABELS = ("id2label", "problem_type")
# What models must share that take each next token together.
_SPECIAL_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")


def deciding_fields(config: PreTrainedConfig) -> tuple[str, ...]:
    """Fields of a configuration of this package that decide which weights there are and what they mean."""
    ours = [kind for kind in type(config).__mro__ if kind.__module__.startswith("vanilla_transformer.")]
    declared = [name for kind in reversed(ours) for name in kind.__annotations__]
    return tuple(name for name in dict.fromkeys(declared) if name not in (*TRAINING_FIELDS, "use_cache"))


def difference_of_architectures(one: PreTrainedConfig, other: PreTrainedConfig) -> str | None:
    """The first field in which two configurations differ that give weights another meaning; None without one."""
    # Only learned positions have an end.
    endless = getattr(one, "positional_encoding", None) == getattr(other, "positional_encoding", None) == "sinusoidal"
    fields = [name for name in deciding_fields(one) if not (endless and name == "max_position_embeddings")]
    return _difference(one, other, ("model_type", *fields, *_LABELS))


def difference_in_decoding(one: PreTrainedConfig, other: PreTrainedConfig) -> str | None:
    """The first field in which two models differ that cannot take each next token together, whatever they are."""
    return _difference(one, other, ("vocab_size", *_SPECIAL_IDS, "target_direction"))


def difference_of_vocabularies(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """Names a difference between two tokenizers; None if they read and write the same ids."""
    ids, theirs = one.get_vocab(), other.get_vocab()
    if len(theirs) != len(ids):
        return f"one has {len(ids):,} entries and the other {len(theirs):,}"
    if theirs != ids:
        piece = min((key for key in ids if theirs.get(key) != ids[key]), key=ids.__getitem__)
        return f"{piece!r} is {ids[piece]} in one and {theirs.get(piece, 'missing')} in the other"
    return None if _segmentation(one) == _segmentation(other) else "they split text in different ways"


def _difference(one: PreTrainedConfig, other: PreTrainedConfig, fields: tuple[str, ...]) -> str | None:
    for name in fields:
        mine, theirs = (
            getattr(config, name, DIRECTIONS[0] if name == "target_direction" else None) for config in (one, other)
        )
        if mine != theirs:
            return f"{name} is {mine} in one and {theirs} in the other"
    return None


def _segmentation(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The parts of a tokenizer that turn text into pieces, and pieces into text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer)
    parts = json.loads(backend.to_str())
    # These two change with each use.
    return {name: part for name, part in parts.items() if name not in ("padding", "truncation")}
