"""Long lines of which only the beginning is translated: the rest need not be split into sub-words."""

import os.path
from typing import Any

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

# Characters per requested token: examined first, and the length up to which a text is examined whole.
_FIRST_LOOK, _SHORT = 4, 16


def beginning(tokenizer: PreTrainedTokenizerBase, text: str, tokens: int) -> str:
    """Returns a beginning of a long text with more than `tokens` tokens, the first of which equal the whole's.

    Tokenizers other than the package's own, and those with tokens added by a user, get the whole text.
    """
    length = _FIRST_LOOK * tokens
    if len(text) <= _SHORT * tokens or not isinstance(tokenizer, VanillaTransformerTokenizer):
        return text
    # The backend never finds its special tokens in text.
    if tokenizer.extra_special_tokens or not all(one.special for one in tokenizer.added_tokens_decoder.values()):
        return text
    while length < len(text) and _settled_tokens(tokenizer, text[:length], tokens) <= tokens:
        length *= 2
    return text[:length]


def _settled_tokens(tokenizer: VanillaTransformerTokenizer, text: str, enough: int) -> int:
    """Counts the leading tokens of a text that stay the same whatever follows it, stopping at `enough`.

    A word is always split in the same way, and only the last two words before the end may change: `don'` continues as
    one word, and ends as two.
    """
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    longest = max(map(len, tokenizer.get_vocab()))
    count = 0
    for place, word in enumerate(words, start=1):
        # Longer than any token, and than anything that may be cut off from the end of a word.
        if place > len(words) - 2 and len(word) > 3 * longest:
            return count + _settled_in_word(backend.model, word, longest)
        long_one_follows = place == len(words) - 1 and len(words[-1]) > 3 * longest
        if count > enough or (place > len(words) - 2 and not long_one_follows):
            break
        count += len(backend.model.tokenize(word))
    return count


def _settled_in_word(model: Any, word: str, longest: int) -> int:
    """Counts the leading tokens of a word that stay the same however it continues.

    Among any `longest` positions there is one where a token ends, and up to there the tokens equal those of the part.
    """
    parts = ([token.id for token in model.tokenize(word[: len(word) - less])] for less in range(longest))
    return len(os.path.commonprefix(list(parts)))
