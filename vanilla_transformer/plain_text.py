"""Raw text is only text: a sentence that spells a special token has the pieces of its letters, and not that token."""

import copy
from typing import TypeVar

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

AnyTokenizer = TypeVar("AnyTokenizer", bound=PreTrainedTokenizerBase)


def plain_text(tokenizer: AnyTokenizer) -> AnyTokenizer:
    """The tokenizer as this package reads texts with it; those of other classes stay as they are.

    The special tokens that it was made with are text. What is meant to be written in texts is found in them as ever:
    `<mask>`, and tokens that a user has added.
    """
    if not isinstance(tokenizer, VanillaTransformerTokenizer) or tokenizer.split_special_tokens:
        return tokenizer
    reader = copy.copy(tokenizer)
    reader.split_special_tokens = True
    reader.init_kwargs = {**tokenizer.init_kwargs, "split_special_tokens": True}
    mask = tokenizer.mask_token
    own = {*map(str, tokenizer.special_tokens_map.values()), *tokenizer.init_kwargs.get("tags", ())} - {mask}
    added = [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]
    written = [token for token in added if token.special and token.content not in own]
    if written:
        # The backend finds no token in plain text that it takes for special.
        for token in written:
            token.special = False
        backend = tokenizer.backend_tokenizer
        alone = Tokenizer(backend.model)  # The same model, not a copy.
        alone.normalizer, alone.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        alone.post_processor, alone.decoder = backend.post_processor, backend.decoder
        alone.add_tokens(added)
        reader._tokenizer, reader._extra_special_tokens = alone, [token.content for token in written]
    return reader
