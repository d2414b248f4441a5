"""Section 5.1: how a vocabulary of sub-words is learned."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from vanilla_transformer.errors import VocabularyError, check_number, check_texts
from vanilla_transformer.model.tokenization_vanilla_transformer import (
    SPECIAL_TOKENS,
    TO_BYTES,
    VanillaTransformerTokenizer,
    post_processor,
)

# The library allocates memory for this many before it learns, and kills the process if there is too little.
_MAX_TYPES = 4_000_000
ALGORITHMS = ("bpe", "wordpiece", "character", "presplit")

# The characters that `TO_BYTES` writes for the 256 bytes.
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
# The first pieces of every vocabulary.
_ALWAYS_THERE = (*SPECIAL_TOKENS.values(), *_BYTES)
_SPECIAL = [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS.values()]

# In characters. Longer words are cut, for learning only: time grows with the square of a word's length.
_MAX_WORD_LENGTH = 1000

# Units that no sub-word crosses: words with the space before them (including apostrophes and joiners inside), single
# digits, so that every number is copied with the same ten pieces, runs of other signs, and white space. Letters never
# stand together with < or >, so that no learned piece can spell a special token.
_WORDS = Regex(r" ?\p{L}(?:[\p{L}\p{M}]|['’\u200C\u200D](?=\p{L}))*| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_CUT_WORDS = Regex(rf"[\s\S]{{1,{_MAX_WORD_LENGTH}}}")
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
_MAX_PIECE_LENGTH = 100


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int | None = None,
    algorithm: str = "bpe",
    *,
    begins: bool = False,
    ends: bool = True,
    mask_token: bool = False,
    lowercase: bool = False,
    or_fewer: bool = False,
) -> VanillaTransformerTokenizer:
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
        or_fewer: Whether texts that cannot give that many types may give fewer.

    Raises:
        VocabularyError: The texts cannot give that many types.
    """
    check_texts("texts", texts)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"There is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}.")
    check_number("vocab_size", vocab_size, len(_ALWAYS_THERE) + mask_token, _MAX_TYPES)
    pieces = None if vocab_size is None else vocab_size - mask_token
    if algorithm == "presplit":
        tokenizer = _learn_presplit(texts, pieces)
    elif pieces is None:
        raise ValueError(f"vocab_size is missing: {algorithm} can learn a vocabulary of any size.")
    elif algorithm == "character":
        tokenizer = _learn_characters(texts, pieces)
    else:
        tokenizer = _learn_sub_words(texts, pieces, algorithm, ends)
    available = tokenizer.get_vocab_size() + mask_token
    if vocab_size is not None and available < vocab_size and not or_fewer:
        raise VocabularyError(
            f"The texts yield a vocabulary of at most {available} entries, not {vocab_size}: ask for {available} or "
            "fewer, or give more text."
        )
    special_tokens = dict(SPECIAL_TOKENS)
    if mask_token:
        special_tokens["mask_token"] = "<mask>"
        tokenizer.add_special_tokens([AddedToken("<mask>", normalized=False, lstrip=algorithm != "character")])
    tokenizer.post_processor = post_processor(tokenizer, begins, ends)
    if lowercase:
        rest = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    return VanillaTransformerTokenizer(tokenizer_object=tokenizer, **special_tokens)


def lowercased(text: str) -> str:
    """Returns the text as a lower-casing tokenizer reads it."""
    return normalizers.Lowercase().normalize_str(text)


def _put_space_before_text(tokenizer: Tokenizer) -> list[pre_tokenizers.PreTokenizer]:
    """Makes a tokenizer begin texts with a space and drop it later; its splitting has to start with the result."""
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(rf"(?<![\s\S]){first}"), _SHIELD + first) for first in (_SHIELD, " ")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    return [_SPACE_BEFORE_TEXT, pre_tokenizers.Split(_SHIELDS, "removed")]


def _learn_sub_words(texts: Iterable[str], vocab_size: int, algorithm: str, ends: bool) -> Tokenizer:
    """Byte-pair encoding (Sennrich et al. 2016): repeatedly joins the most frequent pair of pieces of a word.

    A word always has the same pieces, because a space goes before the text too.

    A text without an end gets none: its continuation is decoded alone, and must keep its first space.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    cut = pre_tokenizers.Split(_CUT_WORDS, "isolated")
    words: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(_WORDS, "isolated")]
    if ends:
        words = _put_space_before_text(tokenizer) + words
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, cut, TO_BYTES])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIAL,
        initial_alphabet=_BYTES,
        max_token_length=_MAX_PIECE_LENGTH,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, TO_BYTES])
    if algorithm == "wordpiece":
        short = pre_tokenizers.Split(Regex(f".{{1,{_MAX_PIECE_LENGTH}}}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, TO_BYTES, short])
        tokenizer.model = _longest_first(tokenizer.get_vocab())
    return tokenizer


def _longest_first(vocabulary: dict[str, int]) -> models.WordPiece:
    """Takes the longest piece from the left; pieces that begin a word include its space, so none needs a mark."""
    return models.WordPiece(
        vocabulary,
        unk_token=SPECIAL_TOKENS["unk_token"],
        continuing_subword_prefix="",
        max_input_chars_per_word=_MAX_PIECE_LENGTH,
    )


def _learn_characters(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns one piece for each of the most frequent characters; the others become bytes."""
    counts = Counter(chain.from_iterable(texts))
    frequent = sorted((char for char in counts if not char.isascii()), key=lambda char: (-counts[char], char))
    pieces = [*_ALWAYS_THERE]
    pieces += [TO_BYTES.pre_tokenize_str(char)[0][0] for char in frequent[: vocab_size - len(pieces)]]
    # No character's bytes begin with another's: the longest piece is the character, or else each of its bytes.
    tokenizer = Tokenizer(_longest_first({piece: index for index, piece in enumerate(pieces)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_CHARACTERS, "isolated"), TO_BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def _learn_presplit(texts: Iterable[str], vocab_size: int | None) -> Tokenizer:
    """Learns the most frequent pieces as they are; the others become bytes. Decoding joins the pieces of a word."""
    counts = Counter(piece for text in texts for piece in text.split(" ") if piece)
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    known = [*_ALWAYS_THERE]
    known += [
        TO_BYTES.pre_tokenize_str(f" {piece}")[0][0]
        for piece in frequent[: None if vocab_size is None else vocab_size - len(known)]
    ]
    # Byte-pair encoding without merges: a piece is known, or else becomes its bytes.
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(known)}, [], ignore_merges=True))
    splits = [*_put_space_before_text(tokenizer), pre_tokenizers.Split(_BETWEEN_SPACES, "isolated"), TO_BYTES]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Replace(_GOES_ON, "")])
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer
