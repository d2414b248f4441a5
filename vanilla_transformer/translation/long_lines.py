"""Lines of which no more than the beginning is translated: the rest need not be split into sub-words."""

import os.path
from typing import Any

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

# Characters for each token that is asked for: looked at first, and looked at whole without a look at less.
_FIRST_LOOK, _SHORT = 4, 16


def beginning(tokenizer: PreTrainedTokenizerBase, text: str, tokens: int) -> str:
    """A beginning of a long text that has more than `tokens` tokens, of which so many are the same as the whole's.

    Other tokenizers than the package's own, and those with tokens that a user added, get the whole text.
    """
    length = _FIRST_LOOK * tokens
    if len(text) <= _SHORT * tokens or not isinstance(tokenizer, VanillaTransformerTokenizer):
        return text
    # What is special to the backend is never found in text.
    if tokenizer.extra_special_tokens or not all(one.special for one in tokenizer.added_tokens_decoder.values()):
        return text
    while length < len(text) and _settled_tokens(tokenizer, text[:length], tokens) <= tokens:
        length *= 2
    return text[:length]


def _settled_tokens(tokenizer: VanillaTransformerTokenizer, text: str, enough: int) -> int:
    """Counts the tokens that a text begins with whatever follows it, stopping once they are enough.

    A word is split in the same way wherever it stands, and where the text ends only its last two words may be others:
    `don'` goes on as one word, and ends as two.
    """
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    longest = max(map(len, tokenizer.get_vocab()))
    count = 0
    for place, word in enumerate(words, start=1):
        # Longer than any token, and than what may be cut off from the end of a word.
        if place > len(words) - 2 and len(word) > 3 * longest:
            return count + _settled_in_word(backend.model, word, longest)
        long_one_follows = place == len(words) - 1 and len(words[-1]) > 3 * longest
        if count > enough or (place > len(words) - 2 and not long_one_follows):
            break
        count += len(backend.model.tokenize(word))
    return count


def _settled_in_word(model: Any, word: str, longest: int) -> int:
    """Counts the tokens that a word begins with however it goes on.

    Among any `longest` places there is one where a token ends, and up to there the tokens are those of the part.
    """
    parts = ([token.id for token in model.tokenize(word[: len(word) - less])] for less in range(longest))
    return len(os.path.commonprefix(list(parts)))
