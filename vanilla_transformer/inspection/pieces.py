"""Tokens as a person reads them: the text of each, and its word."""

import os.path
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

# Stands for a piece without visible text, such as the space before the first word, as on the page of `explore`.
_NOTHING_TO_SEE = "·"


@dataclass(frozen=True)
class Pieces:
    """Tokens in order, and the words that they form.

    Attributes:
        texts: The text that each token adds; for a special token its name.
        words: The text of each word; a special token counts as a word.
        word_of: The number of each token's word, rising from 0.
        special: The number of special tokens.
    """

    texts: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]
    special: int = 0

    @classmethod
    def from_ids(cls, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> "Pieces":
        """Makes pieces with any tokenizer: decodes all tokens up to each token to find the text that it adds."""
        special = set(tokenizer.all_special_ids)
        texts: list[str] = []
        words: list[str] = []
        word_of: list[int] = []
        run: list[int] = []  # Tokens since the last special one.
        before, first = "", 0
        for token in ids:
            if token in special:
                texts.append(str(tokenizer.convert_ids_to_tokens(token)))
                word_of.append(len(words))
                words.append(texts[-1])
                run, before, first = [], "", len(words)
                continue
            run.append(token)
            text = str(tokenizer.decode(run, clean_up_tokenization_spaces=False))
            texts.append(text[len(os.path.commonprefix([before, text])) :].strip() or _NOTHING_TO_SEE)
            words[first:] = text.split() or [_NOTHING_TO_SEE]
            word_of.append(len(words) - 1)
            before = text
        return cls(tuple(texts), tuple(words), tuple(word_of), sum(token in special for token in ids))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def is_one_word(self) -> bool:
        """True for a single word, such as one to be spelled, or text without spaces: its pieces are shown."""
        return len(self.words) - self.special <= 1

    def membership(self) -> torch.Tensor:
        """Returns 1 where a word has a token, (words, tokens); in a single word each token counts as a word."""
        if self.is_one_word:
            return torch.eye(len(self.texts))
        return (torch.arange(len(self.words))[:, None] == torch.tensor(self.word_of)).float()

    def as_words(self) -> "Pieces":
        """Makes each word one piece; a single word keeps its pieces."""
        if self.is_one_word:
            return self
        return Pieces(self.words, self.words, tuple(range(len(self.words))), self.special)
