"""Tokenizer files for tokenizers.js, the JavaScript of `@huggingface/tokenizers`."""

import json
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.data.encoding import reading_backend
from vanilla_transformer.errors import ModelError

# The version in `web/vendor`.
TOKENIZERS_JS = "0.2.0"

# Types of tokenizer.json parts that tokenizers.js supports.
_TOKENIZER_PARTS = {
    "model": {"BPE", "Unigram", "WordPiece"},
    "normalizer": {
        *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Prepend", "Replace"),
        *("Sequence", "Strip", "StripAccents"),
    },
    "pre_tokenizer": {
        *("BertPreTokenizer", "ByteLevel", "Digits", "FixedLength", "Metaspace", "Punctuation", "Replace"),
        *("Sequence", "Split", "Whitespace", "WhitespaceSplit"),
    },
    "post_processor": {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"},
    "decoder": {
        *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"),
        "WordPiece",
    },
}


def tokenizer_parts(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Returns the tokenizer.json in the form that tokenizers.js needs."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"The tokenizer is a {type(tokenizer).__name__} without a tokenizer.json, the one form that "
            "tokenizers.js reads."
        )
    backend = reading_backend(tokenizer)
    parts: dict[str, Any] = json.loads(backend.to_str())
    for part, known in _TOKENIZER_PARTS.items():
        for kind in _kinds(parts[part]):
            if kind not in known:
                raise ModelError(
                    f"The tokenizer has the {part.replace('_', '-')} {kind}, which tokenizers.js {TOKENIZERS_JS} "
                    f"does not read: it reads {', '.join(sorted(known - {'Sequence'}))}."
                )
    if tokenizer.split_special_tokens:
        # Text that spells a special token is plain text, but tokenizers.js would match those listed as added tokens.
        own = backend.get_vocab(with_added_tokens=False)
        added = parts["added_tokens"]
        parts["added_tokens"] = [token for token in added if not (token["special"] and token["content"] in own)]
    return parts


def _kinds(part: dict[str, Any] | None) -> Iterator[str]:
    """Yields the types of a part of a tokenizer and of its components."""
    if part is None:
        return
    behavior = part.get("behavior", "Isolated")
    yield part["type"] if behavior in ("Isolated", "Removed") else f"{part['type']} ({behavior})"
    for inner in ("normalizers", "pretokenizers", "processors", "decoders"):
        for one in part.get(inner, ()):
            yield from _kinds(one)


def tokenizer_config(tokenizer: PreTrainedTokenizerBase, parts: dict[str, Any]) -> dict[str, object]:
    """Returns the tokenizer_config.json that goes with these parts."""
    added = {token["content"] for token in parts["added_tokens"]}
    names = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return {
        "tokenizer_class": "PreTrainedTokenizer",
        **names,
        # Tokens that decoding leaves out.
        "additional_special_tokens": [token for token in tokenizer.all_special_tokens if token not in added],
        "clean_up_tokenization_spaces": False,
    }
