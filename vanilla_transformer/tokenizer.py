"""Section 5.1: learning a vocabulary; `tokenization_vanilla_transformer.py` reads text with it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from vanilla_transformer.errors import VocabularyError, check_number

# The library allocates memory for this many before it learns, and kills the process if there is too little.
_MAX_TYPES = 4_000_000
ALGORITHMS = ("bpe", "wordpiece", "character", "presplit")

# The characters that `_TO_BYTES` writes for the 256 bytes.
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
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


def learn_tokenizer(
    texts: Iterable[str],
    vocab_size: int | None,
    algorithm: str,
    ends: bool,
    special_tokens: Mapping[str, str],
    mask_token: str | None = None,
) -> Tokenizer:
    """Learns a vocabulary; see `VanillaTransformerTokenizer.train`.

    Args:
        special_tokens: The first pieces, by their names in the library.
        mask_token: The last piece.
    """
    if isinstance(texts, str):
        raise ValueError("Give an iterable of texts to learn a vocabulary from, not one text.")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"There is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}.")
    check_number("vocab_size", vocab_size, 1)
    wanted, special = vocab_size, [*special_tokens.values()]
    others = int(mask_token is not None)
    vocab_size = None if wanted is None else wanted - others
    least = len(special) + len(_BYTES)
    if vocab_size is not None and vocab_size < least:
        raise ValueError(
            f"vocab_size must be at least {least + others}, for {len(_BYTES)} bytes and "
            f"{len(special) + others} special tokens, not {wanted}."
        )
    if vocab_size is not None and vocab_size > _MAX_TYPES:
        raise ValueError(f"vocab_size must be at most {_MAX_TYPES}, not {vocab_size}.")
    if algorithm == "presplit":
        tokenizer = _learn_presplit(texts, vocab_size, special)
    elif vocab_size is None:
        raise ValueError(f"vocab_size is missing: {algorithm} can learn a vocabulary of any size.")
    elif algorithm == "character":
        tokenizer = _learn_characters(texts, vocab_size, special)
    else:
        tokenizer = _learn_sub_words(texts, vocab_size, algorithm, ends, special)
    available = tokenizer.get_vocab_size() + others
    if wanted is not None and available < wanted:
        raise VocabularyError(wanted, available)
    if mask_token is not None:
        masks_space = algorithm != "character"
        tokenizer.add_special_tokens([AddedToken(mask_token, normalized=False, lstrip=masks_space)])
    return tokenizer


def lowercased(text: str) -> str:
    """Returns the text as a lower-casing tokenizer reads it."""
    return normalizers.Lowercase().normalize_str(text)


def _as_added(special: Iterable[str]) -> list[AddedToken]:
    """Returns the special tokens as a trainer takes them."""
    return [AddedToken(token, special=True, normalized=False) for token in special]


def _put_space_before_text(tokenizer: Tokenizer) -> list[pre_tokenizers.PreTokenizer]:
    """Makes a tokenizer begin texts with a space and drop it later; its splitting has to start with the result."""
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(rf"(?<![\s\S]){first}"), _SHIELD + first) for first in (_SHIELD, " ")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    return [_SPACE_BEFORE_TEXT, pre_tokenizers.Split(_SHIELDS, "removed")]


def _learn_sub_words(
    texts: Iterable[str], vocab_size: int, algorithm: str, ends: bool, special: list[str]
) -> Tokenizer:
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
    _learn_bpe(tokenizer, texts, vocab_size, special)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, _TO_BYTES])
    if algorithm == "wordpiece":
        short = pre_tokenizers.Split(Regex(f".{{1,{_LONGEST_PIECE}}}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, _TO_BYTES, short])
        tokenizer.model = _longest_first(tokenizer.get_vocab(), special)
    return tokenizer


def _learn_bpe(tokenizer: Tokenizer, texts: Iterable[str], vocab_size: int, special: list[str]) -> None:
    """Byte-pair encoding (Sennrich et al. 2016): repeatedly joins the most frequent pair of pieces."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_as_added(special),
        initial_alphabet=_BYTES,
        max_token_length=_LONGEST_PIECE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def _longest_first(vocabulary: dict[str, int], special: list[str]) -> models.WordPiece:
    """Takes the longest piece from the left; pieces that begin a word include its space, so none needs a mark."""
    return models.WordPiece(
        vocabulary,
        unk_token=special[-1],
        continuing_subword_prefix="",
        max_input_chars_per_word=_LONGEST_PIECE,
    )


def _learn_characters(texts: Iterable[str], vocab_size: int, special: list[str]) -> Tokenizer:
    """Learns one piece for each of the most frequent characters; the others become bytes."""
    counts = Counter(chain.from_iterable(texts))
    frequent = sorted((char for char in counts if not char.isascii()), key=lambda char: (-counts[char], char))
    pieces = [*special, *_BYTES]
    pieces += [_TO_BYTES.pre_tokenize_str(char)[0][0] for char in frequent[: vocab_size - len(pieces)]]
    # No character's bytes begin with another's: the longest piece is the character, or else each of its bytes.
    tokenizer = Tokenizer(_longest_first({piece: index for index, piece in enumerate(pieces)}, special))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_CHARACTERS, "isolated"), _TO_BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_as_added(special))
    return tokenizer


def _learn_presplit(texts: Iterable[str], vocab_size: int | None, special: list[str]) -> Tokenizer:
    """Learns the most frequent pieces as they are; the others become bytes. Decoding joins the pieces of a word."""
    counts = Counter(piece for text in texts for piece in text.split(" ") if piece)
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    known = [*special, *_BYTES]
    known += [
        _TO_BYTES.pre_tokenize_str(f" {piece}")[0][0]
        for piece in frequent[: None if vocab_size is None else vocab_size - len(known)]
    ]
    # Byte-pair encoding without merges: a piece is known, or else becomes its bytes.
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(known)}, [], ignore_merges=True))
    splits = [*_put_space_before_text(tokenizer), pre_tokenizers.Split(_BETWEEN_SPACES, "isolated"), _TO_BYTES]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Replace(_GOES_ON, "")])
    tokenizer.add_special_tokens(_as_added(special))
    return tokenizer
