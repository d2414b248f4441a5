"""Tokens as a person reads them: the text of each, and its word."""

import difflib
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from transformers import PreTrainedTokenizerBase

# Stands for a piece without visible text, such as the space before the first word, as on the page of `explore`.
_NOTHING_TO_SEE = "·"


@dataclass(frozen=True)
class Pieces:
    """Tokens in order, and the words that they form.

    Attributes:
        texts: The text that each token adds; for a special token its name.
        words: The text of each word; a special token counts as a word. A single word, such as one to be spelled, or a
            text without spaces keeps its pieces.
        word_of: The number of each token's word, rising from 0.
    """

    texts: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]

    @classmethod
    def from_ids(cls, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> "Pieces":
        """Makes pieces with any tokenizer."""
        special = set(tokenizer.all_special_ids)
        texts: list[str] = []
        words: list[str] = []
        word_of: list[int] = []
        for is_special, group in groupby(ids, special.__contains__):
            run = list(group)
            if is_special:
                names = list(map(str, tokenizer.convert_ids_to_tokens(run)))
                texts += names
                word_of += range(len(words), len(words) + len(run))
                words += names
                continue
            beginnings = decoded_beginnings(tokenizer, run)
            added = (after[len(os.path.commonprefix([before, after])) :] for before, after in pairwise(beginnings))
            texts += [text.strip() or _NOTHING_TO_SEE for text in added]
            word_of += [len(words) + word for word in word_of_each(beginnings, beginnings[-1])]
            words += beginnings[-1].split() or [_NOTHING_TO_SEE]
        if len(words) - sum(token in special for token in ids) <= 1:
            words, word_of = texts, list(range(len(texts)))
        return cls(tuple(texts), tuple(words), tuple(word_of))

    def __len__(self) -> int:
        return len(self.texts)

    def membership(self) -> torch.Tensor:
        """Returns 1 where a word has a token, (words, tokens)."""
        return (torch.arange(len(self.words))[:, None] == torch.tensor(self.word_of)).float()

    def as_words(self) -> "Pieces":
        """Makes each word one piece."""
        return Pieces(self.words, self.words, tuple(range(len(self.words))))


def decoded_beginnings(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Returns the text of the first 0, 1, 2, ... of these tokens, for any tokenizer."""
    beginnings = [list(ids[:end]) for end in range(len(ids) + 1)]
    # One call where the tokenizer has a backend: others decode each in Python.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return list(backend.decode_batch(beginnings))
    return list(tokenizer.batch_decode(beginnings, clean_up_tokenization_spaces=False))


def word_of_each(beginnings: Sequence[str], text: str) -> list[int]:
    """Returns the word of a text in which each token begins, given the tokens' `decoded_beginnings`.

    Spaces do not count. Where the tokens spell another text, as after a normalizer or a cut, the two are matched.
    """
    word_of_letter, letters = [number for number, word in enumerate(text.split()) for _ in word], "".join(text.split())
    spelled = ["".join(beginning.split()) for beginning in beginnings]
    whole = spelled.pop()
    if not letters or not whole:
        return [0] * len(spelled)
    place_of = list(range(len(whole)))
    if not letters.startswith(whole):
        matcher = difflib.SequenceMatcher(None, whole, letters, autojunk=False)
        for _, i, i_end, j, j_end in matcher.get_opcodes():
            place_of[i:i_end] = [min(j + letter, max(j, j_end - 1)) for letter in range(i_end - i)]
    # Where a token is less than a letter, the tokens up to it do not spell a beginning of the whole.
    starts = [len(os.path.commonprefix([before, whole])) for before in spelled]
    return [word_of_letter[min(place_of[min(start, len(whole) - 1)], len(letters) - 1)] for start in starts]
