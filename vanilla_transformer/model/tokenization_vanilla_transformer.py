"""Section 5.1: one vocabulary of sub-words for source and target, from which any text comes back exactly."""

import copy
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Self

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
from transformers import PreTrainedTokenizerFast

# The library takes memory for as many before it learns, and ends the process where there is not so much.
_MOST_TYPES = 4_000_000
ALGORITHMS = ("bpe", "wordpiece", "unigram", "character", "presplit")

# The order gives the ids: 0 pads, 1 starts the decoder, 2 ends a sentence, 3 is there because the library wants it.
_SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

# Only where it is asked for, after all others: masked language models read it in the place of a piece.
MASK_TOKEN = "<mask>"

# What `_TO_BYTES` writes for each of the 256 bytes.
_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_TO_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

# In characters. Longer words are cut for learning alone: time grows with the square of a word's length.
LONGEST_WORD = 1000

# What no sub-word crosses: words with the space before them (apostrophes and joiners inside belong to the word),
# single digits, so that every number is copied with the same ten pieces, runs of other signs, and white space.
# Letters never stand together with < or >: so no piece can be learned that spells a special token.
_WORDS = Regex(r" ?\p{L}(?:[\p{L}\p{M}]|['’\u200C\u200D](?=\p{L}))*| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_CUT_WORDS = Regex(rf"[\s\S]{{1,{LONGEST_WORD}}}")
_CHARACTERS = Regex(r"[\s\S]")
# With the space before it, as everywhere.
_BETWEEN_SPACES = Regex(" [^ ]*")
# What subword-nmt leaves at the end of a piece of a word that goes on.
_GOES_ON = Regex(r"@@(?: |\z)")

# In bytes. Wordpiece looks at so many of a word together, for its search is cubic in them.
_LONGEST_PIECE = 100

# Unigram begins with so many times the pieces it ends with, and keeps this share in each round.
_SEEDS = 4
_KEPT = 0.75


class VocabularyError(ValueError):
    """The texts cannot give a vocabulary of the size asked for.

    Attributes:
        available: The size that they can give.
    """

    def __init__(self, vocab_size: int, available: int) -> None:
        super().__init__(vocab_size, available)
        self.vocab_size = vocab_size
        self.available = available

    def __str__(self) -> str:
        return (
            f"The texts give a vocabulary of {self.available} types at most, not of {self.vocab_size}: "
            f"ask for {self.available} or fewer, or give more text."
        )


class VanillaTransformerTokenizer(PreTrainedTokenizerFast):
    """Section 5.1: text to ids of sub-words, ended by `</s>`, and back to exactly the same text.

    Sub-words are made of bytes, so no character is unknown. Text is only text: where it holds the string of a
    special token, that string is split like any other. Text that was split before (`presplit`) comes back joined.
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
        tags: Sequence[str] = (),
        mask_token: bool = False,
    ) -> Self:
        """Learns a vocabulary; the same texts in the same order give the same one.

        Words of more than 1,000 characters are learned from in pieces of so many, and are split like any other later.

        Args:
            texts: Sentences of source and target together; read once.
            vocab_size: Types in the vocabulary: 4 special tokens, 256 bytes, and what is learned. `presplit` takes
                all pieces there are if it is None.
            algorithm: `bpe` (byte-pair encoding), `wordpiece` (its pieces, the longest first), `unigram` (the
                likeliest pieces), `character` (one piece for each character), or `presplit` (for text that is split
                already: what stands between spaces, where a piece of a word that goes on ends with `@@`).
            begins: Whether `<s>` stands before a text, as decoder-only and encoder-only models have it.
            ends: Whether `</s>` stands after it; a decoder-only model goes on with a text that it is given. Without it
                no space is put before a text, so that pieces decoded alone keep theirs (`presplit` drops it still).
            tags: Pieces that no text gives, to be put before sources of one kind, as `<BT>` before synthetic ones.
            mask_token: Whether there is a `<mask>`. That string stands for it in every text, as for no other token;
                the space before it is part of what it masks.

        Raises:
            VocabularyError: The texts cannot give so many types.
        """
        if isinstance(texts, str):
            raise ValueError("Give an iterable of texts to learn a vocabulary from, not one text.")
        if algorithm not in ALGORITHMS:
            raise ValueError(f"There is no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}.")
        wanted = vocab_size
        others = mask_token + len(tags)
        vocab_size = None if wanted is None else wanted - others
        least = len(_SPECIAL_TOKENS) + len(_BYTES)
        if vocab_size is not None and vocab_size < least:
            raise ValueError(
                f"vocab_size must be at least {least + others}, for {len(_BYTES)} bytes and "
                f"{len(_SPECIAL_TOKENS) + others} special tokens, not {wanted}."
            )
        if vocab_size is not None and vocab_size > _MOST_TYPES:
            raise ValueError(f"vocab_size must be at most {_MOST_TYPES}, not {vocab_size}.")
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
        names = dict(_SPECIAL_TOKENS)
        if mask_token:
            tokenizer = _with_mask_token(tokenizer)
            names["mask_token"] = MASK_TOKEN
        if known := [tag for tag in tags if tokenizer.token_to_id(tag) is not None]:
            raise ValueError(f"{', '.join(known)} stands in the text as a piece: choose another tag.")
        # As the special tokens of the class, and so text that spells it is only text.
        tokenizer.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in tags])
        tokenizer.post_processor = _template(tokenizer, begins, ends)
        return cls(tokenizer_object=tokenizer, split_special_tokens=True, **names)

    def detokenize(self, text: str) -> str:
        """The text as a translation into it comes out: the same, but for `presplit`, whose pieces become words."""
        ids = self(text, add_special_tokens=False)["input_ids"]
        return str(self.decode(ids, skip_special_tokens=True))

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """A special token that a user adds is found in text, as everywhere; the four of the class never are."""
        if not special_tokens:
            return super()._add_tokens(new_tokens)
        own = {*_SPECIAL_TOKENS.values(), self.mask_token if self.mask_token in self.get_vocab() else None}
        of_the_class = [token for token in new_tokens if str(token) in own]
        added = [token for token in new_tokens if str(token) not in own]
        known = [str(token) for token in self._extra_special_tokens]
        self._extra_special_tokens += [str(token) for token in added if str(token) not in known]
        # The backend finds no token in text that it takes for special: `_decode` skips these.
        findable = [AddedToken(t, normalized=False) if isinstance(t, str) else copy.copy(t) for t in added]
        for token in findable:
            token.special = False
        return super()._add_tokens(of_the_class, special_tokens=True) + super()._add_tokens(findable)

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: Any,
    ) -> str:
        if skip_special_tokens and self.extra_special_tokens:
            ids = [token_ids] if isinstance(token_ids, int) else token_ids
            special = set(self.all_special_ids)
            token_ids = [token for token in ids if token not in special]
        return super()._decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces, **kwargs)


def count_long_words(texts: Iterable[str]) -> int:
    """How many words are longer than those that `train` learns from whole; it cuts them into pieces."""
    splitter = pre_tokenizers.Split(_WORDS, "isolated")
    return sum(
        end - start > LONGEST_WORD
        for text in texts
        if len(text) > LONGEST_WORD
        for _, (start, end) in splitter.pre_tokenize_str(text)
    )


def describe_long_words(count: int) -> str:
    """What `train` does with words that `count_long_words` has counted, in a sentence."""
    words = "word is" if count == 1 else "words are"
    return f"{count:,} {words} longer than {LONGEST_WORD:,} characters, and learned from in pieces of that."


def _special_tokens() -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS.values()]


def _template(tokenizer: Tokenizer, begins: bool, ends: bool) -> processors.TemplateProcessing | None:
    """What stands before a text, between the two of a pair and at the end; None for nothing."""
    start, end = _SPECIAL_TOKENS["bos_token"], _SPECIAL_TOKENS["eos_token"]
    first, last = [start] * begins, [end] * ends
    if not (begins or ends):
        return None
    return processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *(last or first), "$B", *last],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in {*first, *last}],
    )


def _with_mask_token(tokenizer: Tokenizer) -> Tokenizer:
    """The same with one piece more, which no other takes part in and which takes the space before it.

    It is found as a piece like any other, for the backend finds no special token in text that is only text.
    """
    parts = json.loads(tokenizer.to_str())
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary.append([MASK_TOKEN, 0.0])
    else:
        vocabulary[MASK_TOKEN] = len(vocabulary)
    if parts["model"]["type"] == "BPE":
        parts["model"]["ignore_merges"] = True
    for part in parts["pre_tokenizer"]["pretokenizers"]:
        for split in part.get("pretokenizers", [part]):
            if split["type"] == "Split":
                split["pattern"]["Regex"] = f"{MASK_TOKEN}|{split['pattern']['Regex']}"
    masked = Tokenizer.from_str(json.dumps(parts))
    alone = pre_tokenizers.Split(MASK_TOKEN, "isolated")
    masked.pre_tokenizer = pre_tokenizers.Sequence([alone, masked.pre_tokenizer])
    if masked.normalizer is not None:
        space = normalizers.Replace(f" {MASK_TOKEN}", MASK_TOKEN)
        masked.normalizer = normalizers.Sequence([masked.normalizer, space])
    return masked


def _learn_sub_words(texts: Iterable[str], vocab_size: int, algorithm: str, ends: bool) -> Tokenizer:
    """Pieces of words; a word has the same ones wherever it stands, since a space goes before the text too.

    But not before a text without an end: what goes on with it is decoded alone, and its first space must stay.
    """
    tokenizer = Tokenizer(models.BPE())
    words, cut = pre_tokenizers.Split(_WORDS, "isolated"), pre_tokenizers.Split(_CUT_WORDS, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, cut, _TO_BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    if ends:
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    if algorithm == "unigram":
        _learn_unigram(tokenizer, texts, vocab_size)
    else:
        _learn_bpe(tokenizer, texts, vocab_size)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, _TO_BYTES])
    if algorithm == "wordpiece":
        short = pre_tokenizers.Split(Regex(f".{{1,{_LONGEST_PIECE}}}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, short])
        tokenizer.model = _longest_first(tokenizer.get_vocab())
    return tokenizer


def _learn_bpe(tokenizer: Tokenizer, texts: Iterable[str], vocab_size: int) -> None:
    """Byte-pair encoding (Sennrich et al. 2016): joins the most frequent pair of pieces, again and again."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_special_tokens(),
        initial_alphabet=_BYTES,
        max_token_length=_LONGEST_PIECE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def _longest_first(vocabulary: dict[str, int]) -> models.WordPiece:
    """Takes the longest piece from the left; a piece that begins a word has its space, so no other needs a mark."""
    return models.WordPiece(
        vocabulary,
        unk_token=_SPECIAL_TOKENS["unk_token"],
        continuing_subword_prefix="",
        max_input_chars_per_word=_LONGEST_PIECE,
    )


def _learn_unigram(tokenizer: Tokenizer, texts: Iterable[str], vocab_size: int) -> None:
    """Unigram language model (Kudo 2018): from many pieces, drops those that the likelihood of the texts needs least.

    The library's own trainer gives other pieces in each run and other sizes than asked for. This one begins with
    byte-pair pieces and counts pieces in each word's likeliest segmentation.
    """
    counts: Counter[str] = Counter()
    # Taken here, for the tokenizer is locked while it trains.
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer

    def counted() -> Iterator[str]:
        for text in texts:
            words = pre_tokenizer.pre_tokenize_str(text if normalizer is None else normalizer.normalize_str(text))
            counts.update(word for word, _ in words)
            yield text

    _learn_bpe(tokenizer, counted(), _SEEDS * vocab_size)
    ids = tokenizer.get_vocab()
    scores = dict.fromkeys(sorted(ids, key=ids.__getitem__)[len(_SPECIAL_TOKENS) :], -1.0)
    size = vocab_size - len(_SPECIAL_TOKENS)
    while True:
        uses = _count_pieces(_likeliest(scores), counts)
        total = math.log(max(uses.total(), 1))
        # Half a use for a piece without one: its score has to be finite.
        scores = {piece: math.log(uses[piece] or 0.5) - total for piece in scores}
        if len(scores) <= size:
            break
        _drop_least_needed(scores, uses, len(scores) - max(size, int(_KEPT * len(scores))))
    tokenizer.model = _likeliest(scores)
    tokenizer.add_special_tokens(_special_tokens())


def _likeliest(scores: dict[str, float]) -> models.Unigram:
    special = [(token, 0.0) for token in _SPECIAL_TOKENS.values()]
    return models.Unigram([*special, *scores.items()], unk_id=list(_SPECIAL_TOKENS).index("unk_token"))


def _count_pieces(model: models.Unigram, counts: Counter[str]) -> Counter[str]:
    uses: Counter[str] = Counter()
    for word, count in counts.items():
        for token in model.tokenize(word):
            uses[token.value] += count
    return uses


def _drop_least_needed(scores: dict[str, float], uses: Counter[str], count: int) -> None:
    """Drops the pieces whose words lose least of their likelihood, and never a single byte."""
    learned = (piece for piece in scores if len(piece) > 1)
    losses = {piece: uses[piece] * (scores[piece] - _score_in_parts(piece, scores)) for piece in learned}
    for piece in sorted(losses, key=lambda piece: (losses[piece], piece))[:count]:
        del scores[piece]


def _score_in_parts(piece: str, scores: dict[str, float]) -> float:
    """The score of the likeliest way to write a piece with others."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = (start for start in range(end) if end - start < len(piece) and piece[start:end] in scores)
        best.append(max(best[start] + scores[piece[start:end]] for start in starts))
    return best[-1]


def _learn_characters(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """One piece for each of the most frequent characters, bytes for the others."""
    counts = Counter(chain.from_iterable(texts))
    frequent = sorted((char for char in counts if not char.isascii()), key=lambda char: (-counts[char], char))
    pieces = [*_SPECIAL_TOKENS.values(), *_BYTES]
    pieces += [_TO_BYTES.pre_tokenize_str(char)[0][0] for char in frequent[: vocab_size - len(pieces)]]
    # No character's bytes begin with another's: the longest piece is the character, or else each of its bytes.
    tokenizer = Tokenizer(_longest_first({piece: index for index, piece in enumerate(pieces)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_CHARACTERS, "isolated"), _TO_BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_special_tokens())
    return tokenizer


def _learn_presplit(texts: Iterable[str], vocab_size: int | None) -> Tokenizer:
    """The most frequent pieces as they stand, whole; bytes for the others. Decoding joins the pieces of a word."""
    counts = Counter(piece for text in texts for piece in text.split(" ") if piece)
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    known = [*_SPECIAL_TOKENS.values(), *_BYTES]
    known += [
        _TO_BYTES.pre_tokenize_str(f" {piece}")[0][0]
        for piece in frequent[: None if vocab_size is None else vocab_size - len(known)]
    ]
    # Byte-pair encoding that has learned no pair: a piece is known, or else falls into its bytes.
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(known)}, [], ignore_merges=True))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_BETWEEN_SPACES, "isolated"), _TO_BYTES])
    strip, join = decoders.Strip(" ", left=1, right=0), decoders.Replace(_GOES_ON, "")
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), strip, join])
    tokenizer.add_special_tokens(_special_tokens())
    return tokenizer


__all__ = ["ALGORITHMS", "VanillaTransformerTokenizer", "VocabularyError"]
