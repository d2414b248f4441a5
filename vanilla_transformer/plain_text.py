"""Plain reading of raw text: a sentence that spells a special token gets the pieces of its letters, not the token."""

import copy
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, with_same_pieces

AnyTokenizer = TypeVar("AnyTokenizer", bound=PreTrainedTokenizerBase)


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
    if written:
        # In plain text the backend does not find tokens that it considers special.
        for token in written:
            token.special = False
        reader._tokenizer = with_same_pieces(tokenizer.backend_tokenizer, added)
        reader._extra_special_tokens = [token.content for token in written]
    return reader
