"""Text as ids: what a task makes of each row, by the tokenizer's backend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.data.sources import TextForm
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, plain_text

Texts = Mapping[str, Sequence[str]]
TextOrPair = str | tuple[str, str]
Encode = Callable[[Texts, PreTrainedTokenizerBase], Mapping[str, Sequence[Sequence[int]]]]
Ids = NDArray[np.unsignedinteger]
Rows = Mapping[str, Sequence[Ids]]
"""Rows of a corpus by column: each name with the ids of its rows."""


@dataclass(frozen=True)
class RowEncoder:
    """Turns text into ids: the part of a task that preparation needs.

    Attributes:
        columns: Names of the columns of ids made from them.
        encode: Returns the ids of every row for each of `columns`, from the text of every row for each column of
            `form`. If the form is `in_blocks`, a row of text may give several rows of ids. If it is `packed`, it gives
            one, which is cut into blocks together with its neighbours; an empty row begins a text.
        settings: Settings that the ids depend on, besides the text and the tokenizer.
    """

    name: str
    form: TextForm
    columns: tuple[str, ...]
    encode: Encode
    settings: tuple[object, ...] = ()


def token_ids(
    texts: Sequence[TextOrPair], tokenizer: PreTrainedTokenizerBase, *, target: bool = False
) -> list[list[int]]:
    """Returns the ids of each text or pair, with those the tokenizer adds at its ends; a `target` keeps its case."""
    if not tokenizer.is_fast or (target and not isinstance(tokenizer, VanillaTransformerTokenizer)):
        found = tokenizer(text_target=list(texts)) if target else tokenizer(list(texts))
        return list(found["input_ids"])
    # The tokenizer's own call makes many Python objects that are not needed here, and takes twice as long. The backend
    # already works on all cores; processes on top of it only cost memory.
    backend = reading_backend(tokenizer.for_targets() if target else tokenizer)
    return [encoding.ids for encoding in backend.encode_batch_fast(texts)]


def reading_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Returns the backend of a fast tokenizer, set to read plain text of any length."""
    tokenizer = plain_text(tokenizer)
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend
