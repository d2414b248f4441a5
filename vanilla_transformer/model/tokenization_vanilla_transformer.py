"""Section 5.1: one vocabulary of sub-words for source and target, which reproduces any text exactly."""

import copy
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

# The order gives the ids: 0 pads, 1 starts the decoder, 2 ends a sentence; 3 exists because the library needs it.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

# Whether the next text to be read is a target: its own thread's, because threads share a tokenizer.
_READS_TARGET = ContextVar("reads_target", default=False)

AnyTokenizer = TypeVar("AnyTokenizer", bound=PreTrainedTokenizerBase)


class VanillaTransformerTokenizer(PreTrainedTokenizerFast):
    """Section 5.1: text to sub-word ids, ended by `</s>`, and back to exactly the same text.

    Sub-words are made of bytes, so no character is unknown. The string of a special token in a text becomes that
    token; with `split_special_tokens=True` it stays text. Text that is already split (`presplit`) comes back joined.
    """

    def detokenize(self, text: str) -> str:
        """Returns the text as a translation would give it: unchanged, but `presplit` pieces are joined to words."""
        ids = self(text_target=text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return str(self.decode(ids, skip_special_tokens=True))

    def for_targets(self) -> Self:
        """Returns a tokenizer that keeps the case of its text: itself, unless it lower-cases what it reads."""
        normalizer = self.backend_tokenizer.normalizer
        kept = cased(normalizer)
        if kept is normalizer:
            return self
        reader = copy.copy(self)
        reader._tokenizer = with_same_pieces(self.backend_tokenizer, self.added_tokens_decoder)
        reader._tokenizer.normalizer = kept
        return reader

    def _switch_to_target_mode(self) -> None:
        """Keeps the case of references; the library calls it before it reads a `text_target`."""
        _READS_TARGET.set(True)

    def _add_tokens(self, *args: Any, **kwargs: Any) -> int:
        """Adds tokens, and has those decoded as text whose letters the decoder would take for bytes, as in a piece."""
        added, backend = super()._add_tokens(*args, **kwargs), self.backend_tokenizer
        for number, token in self.added_tokens_decoder.items():
            if backend.decode([number], skip_special_tokens=False) != token.content:
                whole, spelled = rf"\A{re.escape(token.content)}\z", TO_BYTES.pre_tokenize_str(token.content)[0][0]
                backend.decoder = decoders.Sequence([decoders.Replace(Regex(whole), spelled), backend.decoder])
        return added

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: object,
    ) -> str:
        if skip_special_tokens and self.split_special_tokens and self.extra_special_tokens:
            ids, special = [token_ids] if isinstance(token_ids, int) else token_ids, set(self.all_special_ids)
            token_ids = [token for token in ids if token not in special]
        return super()._decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)

    def _encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_split_into_words") and not _has_space_before_text(self.backend_tokenizer):
            text, text_pair = _spaced(text), _spaced(text_pair)
        reader = self.for_targets() if _READS_TARGET.get() else self
        _READS_TARGET.set(False)  # Before anything can raise: the next call reads a source.
        return super(VanillaTransformerTokenizer, reader)._encode_plus(text, text_pair, *args, **kwargs)

    @property
    def add_bos_token(self) -> bool:
        """Tells whether `<s>` stands before a text."""
        return self.bos_token_id in self.backend_tokenizer.encode("").ids

    @add_bos_token.setter
    def add_bos_token(self, value: bool) -> None:
        self.backend_tokenizer.post_processor = post_processor(self.backend_tokenizer, value, self.add_eos_token)

    @property
    def add_eos_token(self) -> bool:
        """Tells whether `</s>` stands after a text."""
        return self.eos_token_id in self.backend_tokenizer.encode("").ids

    @add_eos_token.setter
    def add_eos_token(self, value: bool) -> None:
        self.backend_tokenizer.post_processor = post_processor(self.backend_tokenizer, self.add_bos_token, value)

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Learns a new vocabulary as the library does, but marks no piece as the continuation of a word."""
        if isinstance(self.backend_tokenizer.model, models.WordPiece):
            kwargs.setdefault("continuing_subword_prefix", "")
        return super().train_new_from_iterator(*args, **kwargs)

    def update_post_processor(self) -> None:
        """Sets the tokens around a text as given at loading, and leaves the rest as it is."""
        for name in {"add_bos_token", "add_eos_token"} & self.init_kwargs.keys():
            setattr(self, name, self.init_kwargs[name])


def with_same_pieces(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> Tokenizer:
    """Returns a tokenizer that shares the model of this one and can be changed without it, with these added tokens."""
    reader = Tokenizer(tokenizer.model)
    reader.normalizer, reader.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    reader.post_processor, reader.decoder = tokenizer.post_processor, tokenizer.decoder
    reader.add_tokens([token for _, token in sorted(added.items())])
    return reader


def plain_text(tokenizer: AnyTokenizer) -> AnyTokenizer:
    """Returns the tokenizer as this package reads texts with it; tokenizers of other classes stay unchanged.

    Its own special tokens are plain text. Tokens meant to be written in texts are still found: `<mask>`, and tokens
    added by a user.
    """
    if not isinstance(tokenizer, VanillaTransformerTokenizer) or tokenizer.split_special_tokens:
        return tokenizer
    reader = copy.copy(tokenizer)
    reader.split_special_tokens = True
    reader.init_kwargs = {**tokenizer.init_kwargs, "split_special_tokens": True}
    own = {*map(str, tokenizer.special_tokens_map.values())} - {tokenizer.mask_token}
    added = tokenizer.added_tokens_decoder
    written = [token for token in added.values() if token.special and token.content not in own]
    for token in written:
        token.special = False  # In plain text the backend does not find tokens that it considers special.
    # The library tells a backend at each call what special tokens are, so that threads must not share it.
    reader._tokenizer = with_same_pieces(tokenizer.backend_tokenizer, added)
    reader._extra_special_tokens = [token.content for token in written]
    return reader


def cased(normalizer: object) -> Any:
    """Returns the normalizer without lower-casing, for targets and for text already in lower case."""
    if not isinstance(normalizer, normalizers.Sequence):
        return normalizer
    parts = [normalizer[place] for place in range(len(normalizer))]
    kept = [part for part in parts if not isinstance(part, normalizers.Lowercase)]
    return normalizer if len(kept) == len(parts) else normalizers.Sequence(kept) if kept else None


def post_processor(tokenizer: Tokenizer, begins: bool, ends: bool) -> processors.PostProcessor:
    """Adds tokens before a text, between the two of a pair and at the end; offsets exclude a word's leading space."""
    trim = processors.ByteLevel(add_prefix_space=_has_space_before_text(tokenizer), trim_offsets=True)
    start, end = SPECIAL_TOKENS["bos_token"], SPECIAL_TOKENS["eos_token"]
    first, last = [start] * begins, [end] * ends
    template = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *(last or first), "$B", *last],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*first, *last}],
    )
    return processors.Sequence([trim, template])


def _has_space_before_text(tokenizer: Tokenizer) -> bool:
    return cased(tokenizer.normalizer) is not None


def _spaced(words: object) -> Any:
    """Puts a space before each word but the first, in a list of words or of lists."""
    if not isinstance(words, list | tuple):
        return words
    return type(words)(
        f" {word}" if place and isinstance(word, str) else _spaced(word) for place, word in enumerate(words)
    )
