"""Unigram vocabularies (Kudo 2018), whose splits of words have probabilities and can be sampled."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, models

from vanilla_transformer.model.tokenization_vanilla_transformer import SPECIAL_TOKENS
from vanilla_transformer.tokenizer.learning import learn_bpe, special_tokens

# The first number of pieces is this multiple of the final one, and each round keeps this share of them.
_SEEDS = 4
_KEPT = 0.75


def learn_unigram(tokenizer: Tokenizer, texts: Iterable[str], vocab_size: int) -> None:
    """Unigram language model (Kudo 2018): starts with many pieces, drops those that matter least to the likelihood.

    The library's own trainer gives other pieces in each run and other sizes than requested. This one starts with
    byte-pair pieces and counts pieces in each word's likeliest segmentation.
    """
    counts: Counter[str] = Counter()
    # Taken here, because the tokenizer is locked while it trains.
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer

    def counted() -> Iterator[str]:
        for text in texts:
            words = pre_tokenizer.pre_tokenize_str(text if normalizer is None else normalizer.normalize_str(text))
            counts.update(word for word, _ in words)
            yield text

    learn_bpe(tokenizer, counted(), _SEEDS * vocab_size)
    ids = tokenizer.get_vocab()
    scores = dict.fromkeys(sorted(ids, key=ids.__getitem__)[len(SPECIAL_TOKENS) :], -1.0)
    size = vocab_size - len(SPECIAL_TOKENS)
    while True:
        uses = _count_pieces(_likeliest(scores), counts)
        total = math.log(max(uses.total(), 1))
        # Half a use for an unused piece, so that its score is finite.
        scores = {piece: math.log(uses[piece] or 0.5) - total for piece in scores}
        if len(scores) <= size:
            break
        _drop_least_needed(scores, uses, len(scores) - max(size, int(_KEPT * len(scores))))
    tokenizer.model = _likeliest(scores)
    tokenizer.add_special_tokens(special_tokens())


def _likeliest(scores: dict[str, float]) -> models.Unigram:
    special = [(token, 0.0) for token in SPECIAL_TOKENS.values()]
    return models.Unigram([*special, *scores.items()], unk_id=list(SPECIAL_TOKENS).index("unk_token"))


def _count_pieces(model: models.Unigram, counts: Counter[str]) -> Counter[str]:
    uses: Counter[str] = Counter()
    for word, count in counts.items():
        for token in model.tokenize(word):
            uses[token.value] += count
    return uses


def _drop_least_needed(scores: dict[str, float], uses: Counter[str], count: int) -> None:
    """Drops the pieces whose loss lowers the likelihood of their words least, but never a single byte."""
    learned = (piece for piece in scores if len(piece) > 1)
    losses = {piece: uses[piece] * (scores[piece] - _score_in_parts(piece, scores)) for piece in learned}
    for piece in sorted(losses, key=lambda piece: (losses[piece], piece))[:count]:
        del scores[piece]


def _score_in_parts(piece: str, scores: dict[str, float]) -> float:
    """Returns the score of the likeliest way to write a piece with others."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = (start for start in range(end) if end - start < len(piece) and piece[start:end] in scores)
        best.append(max(best[start] + scores[piece[start:end]] for start in starts))
    return best[-1]
