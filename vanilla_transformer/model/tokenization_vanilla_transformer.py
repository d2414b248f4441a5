"""Section 5.1: one vocabulary of sub-words for source and target, which reproduces any text exactly."""

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from itertools import chain
from typing import Any, Self, TypeVar

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

try:  # A saved tokenizer does not copy what is imported in a `try`.
    from vanilla_transformer.errors import VocabularyError, check_number
except ImportError:
    VocabularyError = None  # type: ignore[assignment, misc]

# The order gives the ids: 0 pads, 1 starts the decoder, 2 ends a sentence; 3 exists because the library needs it.
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

# Added only on request, after all other tokens: masked language models read it in place of a piece.
MASK_TOKEN = "<mask>"

# The library allocates memory for this many before it learns, and kills the process if there is too little.
_MAX_TYPES = 4_000_000
ALGORITHMS = ("bpe", "wordpiece", "character", "presplit")

# The characters that `_TO_BYTES` writes for the 256 bytes.
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
# The first pieces of every vocabulary.
_ALWAYS_THERE = (*SPECIAL_TOKENS.values(), *_BYTES)
_SPECIAL = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS.values()]
_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

# In characters. Longer words are cut, for learning only: time grows with the square of a word's length.
LONGEST_WORD = 1000

# Units that no sub-word crosses: words with the space before them (including apostrophes and joiners inside), single
# digits, so that every number is copied with the same ten pieces, runs of other signs, and white space. Letters never
# stand together with < or >, so that no learned piece can spell a special token.
_WORDS = Regex(r" ?\p{L}(?:[\p{L}\p{M}]|['’\u200C\u200D](?=\p{L}))*| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_CUT_WORDS = Regex(rf"[\s\S]{{1,{LONGEST_WORD}}}")
_CHARACTERS = Regex(r"[\s\S]")
# With the space before it, as everywhere.
_BETWEEN_SPACES = Regex(" [^ ]*")

# A space goes before a text, but not after a token inside it. The library's way to tell these apart skips texts that
# begin with a space, so such texts get a leading character that no text contains.
_SHIELD = "\ufdd0"
_SPACE_BEFORE_TEXT = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
_SHIELDS = Regex(rf"(?<![\s\S][\s\S])(?<= ){_SHIELD}|(?<![\s\S]){_SHIELD}")

# The mark of subword-nmt at the end of a piece inside a word.
_GOES_ON = Regex(r"@@(?: |\z)")

# In bytes. Wordpiece looks at this much of a word at once, because its search is cubic in it.
_LONGEST_PIECE = 100

# Whether the next text to be read is a target: its own thread's, because threads share a tokenizer.
_READS_TARGET = ContextVar("reads_target", default=False)

AnyTokenizer = TypeVar("AnyTokenizer", bound=PreTrainedTokenizerBase)


class _Word(str):
    """Text that began with a space among others."""


class VanillaTransformerTokenizer(PreTrainedTokenizerFast):
    """Section 5.1: text to sub-word ids, ended by `</s>`, and back to exactly the same text.

    Sub-words are made of bytes, so no character is unknown. The string of a special token in a text becomes that
    token; with `split_special_tokens=True` it stays text. Text that is already split (`presplit`) comes back joined.
    """

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int | None = None,
        algorithm: str = "bpe",
        *,
        begins: bool = False,
        ends: bool = True,
        mask_token: bool = False,
        lowercase: bool = False,
    ) -> Self:
        """Learns a vocabulary; the same texts in the same order give the same vocabulary.

        Words of more than 1,000 characters are learned in pieces of that length; later they are split like any other.

        Args:
            texts: Sentences of source and target together; read once.
            vocab_size: Types in the vocabulary: 4 special tokens, 256 bytes, and the learned pieces. If None,
                `presplit` takes all pieces there are.
            algorithm: `bpe` (byte-pair encoding), `wordpiece` (its pieces, the longest first), `character` (one piece
                per character), or `presplit` (for text already split at spaces, where a piece inside a word ends with
                `@@`).
            begins: Whether `<s>` stands before a text, as in decoder-only and encoder-only models.
            ends: Whether `</s>` stands after it; a decoder-only model continues the text it is given. If False, no
                space is put before a text, so that pieces decoded alone keep theirs (`presplit` still drops it).
            mask_token: Whether there is a `<mask>`; the space before it is part of the masked text.
            lowercase: Whether text is lower-cased before it is split; a target (`text_target=`) keeps its case. The
                texts given here are learned as they are: see `lowercased`.

        Raises:
            VocabularyError: The texts cannot give that many types.
        """
        tokenizer = _learned(texts, vocab_size, algorithm, ends, mask_token)
        tokenizer.post_processor = _post_processor(tokenizer, begins, ends)
        if lowercase:
            rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
        return cls(tokenizer_object=tokenizer, **SPECIAL_TOKENS, **({"mask_token": MASK_TOKEN} if mask_token else {}))

    def detokenize(self, text: str) -> str:
        """Returns the text as a translation would give it: unchanged, but `presplit` pieces are joined to words."""
        ids = self(text_target=text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return str(self.decode(ids, skip_special_tokens=True))

    def for_targets(self) -> Self:
        """Returns a tokenizer that keeps the case of its text: itself, unless it lower-cases what it reads."""
        normalizer = self.backend_tokenizer.normalizer
        kept = cased(normalizer)
        if kept is normalizer:
            return self
        reader = copy.copy(self)
        reader._tokenizer = with_same_pieces(self.backend_tokenizer, self.added_tokens_decoder)
        reader._tokenizer.normalizer = kept
        return reader

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Joins pieces to text, and words that earlier calls have joined with a space between them.

        So the pipeline for token classification makes words, and then groups of words.
        """
        if any(isinstance(token, _Word) for token in tokens):
            return _Word("".join(" " * isinstance(token, _Word) + token for token in tokens).removeprefix(" "))
        text = super().convert_tokens_to_string(tokens)
        return _Word(text) if tokens and tokens[0].startswith("Ġ") else text

    def _switch_to_target_mode(self) -> None:
        """Keeps the case of references; the library calls it before it reads a `text_target`."""
        _READS_TARGET.set(True)

    def _add_tokens(self, *args: Any, **kwargs: Any) -> int:
        """Adds tokens, and has those decoded as text whose letters the decoder would take for bytes, as in a piece."""
        added, backend = super()._add_tokens(*args, **kwargs), self.backend_tokenizer
        for number, token in self.added_tokens_decoder.items():
            if backend.decode([number], skip_special_tokens=False) != token.content:
                whole, spelled = rf"\A{re.escape(token.content)}\z", _TO_BYTES.pre_tokenize_str(token.content)[0][0]
                backend.decoder = decoders.Sequence([decoders.Replace(Regex(whole), spelled), backend.decoder])
        return added

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: object,
    ) -> str:
        if skip_special_tokens and self.split_special_tokens and self.extra_special_tokens:
            ids, special = [token_ids] if isinstance(token_ids, int) else token_ids, set(self.all_special_ids)
            token_ids = [token for token in ids if token not in special]
        return super()._decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)

    def _encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_split_into_words") and not _has_space_before_text(self.backend_tokenizer):
            text, text_pair = _spaced(text), _spaced(text_pair)
        reader = self.for_targets() if _READS_TARGET.get() else self
        _READS_TARGET.set(False)  # Before anything can raise: the next call reads a source.
        return super(VanillaTransformerTokenizer, reader)._encode_plus(text, text_pair, *args, **kwargs)

    @property
    def add_bos_token(self) -> bool:
        """Tells whether `<s>` stands before a text."""
        return self.bos_token_id in self.backend_tokenizer.encode("").ids

    @add_bos_token.setter
    def add_bos_token(self, value: bool) -> None:
        self.backend_tokenizer.post_processor = _post_processor(self.backend_tokenizer, value, self.add_eos_token)

    @property
    def add_eos_token(self) -> bool:
        """Tells whether `</s>` stands after a text."""
        return self.eos_token_id in self.backend_tokenizer.encode("").ids

    @add_eos_token.setter
    def add_eos_token(self, value: bool) -> None:
        self.backend_tokenizer.post_processor = _post_processor(self.backend_tokenizer, self.add_bos_token, value)

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Learns anew as the library does, but no piece is marked as the continuation of a word."""
        if isinstance(self.backend_tokenizer.model, models.WordPiece):
            kwargs.setdefault("continuing_subword_prefix", "")
        return super().train_new_from_iterator(*args, **kwargs)

    def update_post_processor(self) -> None:
        """Sets the tokens around a text as asked for at loading, and leaves the rest as it is."""
        for name in {"add_bos_token", "add_eos_token"} & self.init_kwargs.keys():
            setattr(self, name, self.init_kwargs[name])


def with_same_pieces(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> Tokenizer:
    """Returns a tokenizer that shares the model of this one and can be changed without it, with these added tokens."""
    reader = Tokenizer(tokenizer.model)
    reader.normalizer, reader.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    reader.post_processor, reader.decoder = tokenizer.post_processor, tokenizer.decoder
    reader.add_tokens([token for _, token in sorted(added.items())])
    return reader


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


def cased(normalizer: object) -> Any:
    """Returns the normalizer without lower-casing, for targets and for text already in lower case."""
    if not isinstance(normalizer, normalizers.Sequence):
        return normalizer
    parts = [normalizer[place] for place in range(len(normalizer))]
    kept = [part for part in parts if not isinstance(part, normalizers.Lowercase)]
    return normalizer if len(kept) == len(parts) else normalizers.Sequence(kept) if kept else None


def _post_processor(tokenizer: Tokenizer, begins: bool, ends: bool) -> processors.PostProcessor:
    """Adds tokens before a text, between the two of a pair and at the end; offsets exclude a word's leading space."""
    trim = processors.ByteLevel(add_prefix_space=_has_space_before_text(tokenizer), trim_offsets=True)
    start, end = SPECIAL_TOKENS["bos_token"], SPECIAL_TOKENS["eos_token"]
    first, last = [start] * begins, [end] * ends
    template = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *(last or first), "$B", *last],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*first, *last}],
    )
    return processors.Sequence([trim, template])


def _has_space_before_text(tokenizer: Tokenizer) -> bool:
    return cased(tokenizer.normalizer) is not None


def _spaced(words: object) -> Any:
    """Puts a space before each word but the first, in a list of words or of lists."""
    if not isinstance(words, list | tuple):
        return words
    return type(words)(
        f" {word}" if place and isinstance(word, str) else _spaced(word) for place, word in enumerate(words)
    )


def lowercased(text: str) -> str:
    """Returns the text as a lower-casing tokenizer reads it."""
    return normalizers.Lowercase().normalize_str(text)


def _learned(texts: Iterable[str], vocab_size: int | None, algorithm: str, ends: bool, mask_token: bool) -> Tokenizer:
    """Learns a vocabulary; see `VanillaTransformerTokenizer.train`. `<mask>` is its last piece."""
    if VocabularyError is None:
        raise ImportError("To learn a vocabulary, install vanilla_transformer.")
    if isinstance(texts, str):
        raise ValueError("Give an iterable of texts to learn a vocabulary from, not one text.")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"There is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}.")
    check_number("vocab_size", vocab_size, 1)
    wanted, others = vocab_size, 1 if mask_token else 0
    vocab_size = None if wanted is None else wanted - others
    least = len(_ALWAYS_THERE)
    if vocab_size is not None and vocab_size < least:
        raise ValueError(
            f"vocab_size must be at least {least + others}, for {len(_BYTES)} bytes and "
            f"{len(SPECIAL_TOKENS) + others} special tokens, not {wanted}."
        )
    if vocab_size is not None and vocab_size > _MAX_TYPES:
        raise ValueError(f"vocab_size must be at most {_MAX_TYPES}, not {vocab_size}.")
    if algorithm == "presplit":
        tokenizer = _learn_presplit(texts, vocab_size)
    elif vocab_size is None:
        raise ValueError(f"vocab_size is missing: {algorithm} can learn a vocabulary of any size.")
    elif algorithm == "character":
        tokenizer = _learn_characters(texts, vocab_size)
    else:
        tokenizer = _learn_sub_words(texts, vocab_size, algorithm, ends)
    available = tokenizer.get_vocab_size() + others
    if wanted is not None and available < wanted:
        raise VocabularyError(wanted, available)
    if mask_token:
        masks_space = algorithm != "character"
        tokenizer.add_special_tokens([AddedToken(MASK_TOKEN, normalized=False, lstrip=masks_space)])
    return tokenizer


def _put_space_before_text(tokenizer: Tokenizer) -> list[pre_tokenizers.PreTokenizer]:
    """Makes a tokenizer begin texts with a space and drop it later; its splitting has to start with the result."""
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(rf"(?<![\s\S]){first}"), _SHIELD + first) for first in (_SHIELD, " ")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    return [_SPACE_BEFORE_TEXT, pre_tokenizers.Split(_SHIELDS, "removed")]


def _learn_sub_words(texts: Iterable[str], vocab_size: int, algorithm: str, ends: bool) -> Tokenizer:
    """Learns pieces of words; a word always has the same ones, because a space goes before the text too.

    A text without an end gets none: its continuation is decoded alone, and must keep its first space.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    cut = pre_tokenizers.Split(_CUT_WORDS, "isolated")
    words: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(_WORDS, "isolated")]
    if ends:
        words = _put_space_before_text(tokenizer) + words
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, cut, _TO_BYTES])
    _learn_bpe(tokenizer, texts, vocab_size)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, _TO_BYTES])
    if algorithm == "wordpiece":
        short = pre_tokenizers.Split(Regex(f".{{1,{_LONGEST_PIECE}}}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, _TO_BYTES, short])
        tokenizer.model = _longest_first(tokenizer.get_vocab())
    return tokenizer


def _learn_bpe(tokenizer: Tokenizer, texts: Iterable[str], vocab_size: int) -> None:
    """Byte-pair encoding (Sennrich et al. 2016): repeatedly joins the most frequent pair of pieces."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIAL,
        initial_alphabet=_BYTES,
        max_token_length=_LONGEST_PIECE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def _longest_first(vocabulary: dict[str, int]) -> models.WordPiece:
    """Takes the longest piece from the left; pieces that begin a word include its space, so none needs a mark."""
    return models.WordPiece(
        vocabulary,
        unk_token=SPECIAL_TOKENS["unk_token"],
        continuing_subword_prefix="",
        max_input_chars_per_word=_LONGEST_PIECE,
    )


def _learn_characters(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns one piece for each of the most frequent characters; the others become bytes."""
    counts = Counter(chain.from_iterable(texts))
    frequent = sorted((char for char in counts if not char.isascii()), key=lambda char: (-counts[char], char))
    pieces = [*_ALWAYS_THERE]
    pieces += [_TO_BYTES.pre_tokenize_str(char)[0][0] for char in frequent[: vocab_size - len(pieces)]]
    # No character's bytes begin with another's: the longest piece is the character, or else each of its bytes.
    tokenizer = Tokenizer(_longest_first({piece: index for index, piece in enumerate(pieces)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_CHARACTERS, "isolated"), _TO_BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def _learn_presplit(texts: Iterable[str], vocab_size: int | None) -> Tokenizer:
    """Learns the most frequent pieces as they are; the others become bytes. Decoding joins the pieces of a word."""
    counts = Counter(piece for text in texts for piece in text.split(" ") if piece)
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    known = [*_ALWAYS_THERE]
    known += [
        _TO_BYTES.pre_tokenize_str(f" {piece}")[0][0]
        for piece in frequent[: None if vocab_size is None else vocab_size - len(known)]
    ]
    # Byte-pair encoding without merges: a piece is known, or else becomes its bytes.
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(known)}, [], ignore_merges=True))
    splits = [*_put_space_before_text(tokenizer), pre_tokenizers.Split(_BETWEEN_SPACES, "isolated"), _TO_BYTES]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Replace(_GOES_ON, "")])
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer
