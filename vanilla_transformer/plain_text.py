"""Plain reading of raw text: a sentence that spells a special token gets the pieces of its letters, not the token."""

import copy
from typing import TypeVar

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

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
    added = [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]
    written = [token for token in added if token.special and token.content not in own]
    if written:
        # In plain text the backend does not find tokens that it considers special.
        for token in written:
            token.special = False
        backend = tokenizer.backend_tokenizer
        alone = Tokenizer(backend.model)  # The same model, not a copy.
        alone.normalizer, alone.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        alone.post_processor, alone.decoder = backend.post_processor, backend.decoder
        alone.add_tokens(added)
        reader._tokenizer, reader._extra_special_tokens = alone, [token.content for token in written]
    return reader
