"""Tokens as a person reads them: the text of each, and the word that it belongs to."""

import os.path
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

# Stands for a piece that shows nothing of its own, such as the space before the first word.
_NOTHING_TO_SEE = "␣"


@dataclass(frozen=True)
class Pieces:
    """Tokens in order, and the words that they make.

    Attributes:
        texts: What each token adds to the text; a special token by its name.
        words: The text of each word; a special token is one of its own.
        word_of: The number of the word that each token belongs to, rising from 0.
        special: How many of the tokens are special ones.
    """

    texts: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]
    special: int = 0

    @classmethod
    def from_ids(cls, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> "Pieces":
        """Pieces of any tokenizer: what a token adds is seen by decoding all tokens up to it."""
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
        """A single word, such as one to be spelled, or a language without spaces: its pieces are what to look at."""
        return len(self.words) - self.special <= 1

    def membership(self) -> torch.Tensor:
        """1 where a word has a token, (words, tokens); of a single word each token counts as one."""
        if self.is_one_word:
            return torch.eye(len(self.texts))
        return (torch.arange(len(self.words))[:, None] == torch.tensor(self.word_of)).float()

    def as_words(self) -> "Pieces":
        """The words, each as one piece; a single word keeps its pieces."""
        if self.is_one_word:
            return self
        return Pieces(self.words, self.words, tuple(range(len(self.words))), self.special)
