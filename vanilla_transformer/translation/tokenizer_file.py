"""A model's `tokenizer.json`, read without transformers: the same tokens and the same text as by the class."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from tokenizers import Tokenizer, pre_tokenizers

from vanilla_transformer.graph.settings import words

# Fields that are read here, or change no token and no text. A tokenizer with others that are set needs its class.
_FIELDS = words(
    "add_prefix_space backend bos_token chat_template eos_token is_local local_files_only max_length "
    "model_input_names model_max_length name_or_path pad_to_multiple_of pad_token pad_token_type_id padding_side "
    "processor_class split_special_tokens stride tokenizer_class truncation_side truncation_strategy unk_token"
)
# Characters of a line per token that is translated of it, up to which it is taken whole.
_CHARACTERS_PER_TOKEN = 16
_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
Encode = Callable[[list[str]], list[list[int]]]


class TokenizerFile:
    """The package's own tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # Text that spells a special token is only text.
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def of(cls, directory: Path) -> Self | None:
        """Returns the tokenizer of a directory, or None if it needs its class."""
        try:
            config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
            own = {config[name] for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
            # A newer library's own defaults say that something is off.
            is_known = all(name in _FIELDS or value in (None, False, [], {}) for name, value in config.items())
            if config["tokenizer_class"] != "VanillaTransformerTokenizer" or not is_known:
                return None
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception:  # The library raises Exception itself for damaged files; the class says what is wrong.
            return None
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        return cls(tokenizer) if added == own else None

    @property
    def vocab_size(self) -> int:
        """The number of embeddings that its tokens need."""
        return int(max(self._tokenizer.get_vocab().values())) + 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the tokens of each text, with its end."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Returns the texts of tokens."""
        return list(self._tokenizer.decode_batch(sequences, skip_special_tokens=True))

    def detokenize(self, text: str) -> str:
        """Returns text as decoding would give it: unchanged, or with the pieces of words joined."""
        # Something stands before it, because decoding drops the space that encoding puts there.
        [(piece, _)] = _TO_BYTES.pre_tokenize_str(f".{text}")
        return str(self._tokenizer.decoder.decode([piece]))[1:]


def source_tokens(encode: Encode, lines: Sequence[str], max_length: int) -> list[tuple[list[int], bool]]:
    """Returns the tokens that a model reads of each line, at most `max_length`, and whether the line was cut."""
    if not lines:
        return []
    found = encode([beginning(encode, line, max_length) for line in lines])
    # Cut, and still ended by </s>.
    return [([*ids[: max_length - 1], ids[-1]], True) if len(ids) > max_length else (ids, False) for ids in found]


def beginning(encode: Encode, text: str, tokens: int) -> str:
    """Returns a beginning of a long text, the first `tokens` tokens of which are those of the whole.

    A cut changes the tokens near it alone, so a beginning of twice as many tokens is long enough.
    """
    length = _CHARACTERS_PER_TOKEN * tokens
    while length < len(text) and len(encode([text[:length]])[0]) <= 2 * tokens:
        length *= 2
    return text[:length]
