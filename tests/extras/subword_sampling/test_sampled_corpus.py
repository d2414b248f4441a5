"""Words split at random: pieces of the same text, drawn as the papers say, and the same wherever they are drawn."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from refusals import refused
from tokenizers import Tokenizer

from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.token_corpus import PreparationReport, PreparedCorpus
from vanilla_transformer.extras.labelling.conll import TAGGED_SENTENCES
from vanilla_transformer.extras.mixing.mixed_corpus import MixedCorpus
from vanilla_transformer.extras.subword_sampling.sampled_corpus import SampledCorpus
from vanilla_transformer.extras.subword_sampling.word_samplers import LONGEST_WORD, BpeDropout, UnigramSampling
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task

SENTENCES = [
    "The unhappy walker walks, walking happily: it's 2016!",
    "Ein  glücklicher Läufer läuft – läuft und läuft.",
    "日本語 text, mixed with others'; \U0001f600\U0001f600 and \tspaces ",
    "walk walked walking walker walkers unhappily happiness",
]
BOTH = ("source", "target")


def learn(algorithm):
    return VanillaTransformerTokenizer.train(SENTENCES * 3, 350, algorithm)


@pytest.fixture(scope="module")
def bpe():
    return learn("bpe")


@pytest.fixture(scope="module")
def unigram():
    return learn("unigram")


def prepared(tokenizer, directory, sentences=SENTENCES, max_length=400):
    pairs = Dataset.from_dict({"source": sentences, "target": sentences[::-1]})
    return prepare_corpus(pairs, tokenizer, get_task("translation"), max_length=max_length, directory=directory)


def corpus_of(tokenizer, directory, dropout=None, alpha=None, columns=BOTH, max_length=400, seed=1, **settings):
    base = prepared(tokenizer, directory, max_length=max_length, **settings)
    strength = {"bpe_dropout": dropout, "unigram_alpha": alpha}
    return base, SampledCorpus(base, tokenizer, **strength, columns=columns, max_length=max_length, seed=seed)


def all_rows(corpus):
    return {name: [ids.tolist() for ids in rows] for name, rows in corpus.rows(np.arange(len(corpus))).items()}


def epoch(corpus, number):
    [part] = corpus.epoch_parts(number)
    return part.corpus


def model_of(tokenizer):
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]


def test_without_dropout_bpe_is_the_tokenizers_own(bpe, tmp_path):
    base, sampled = corpus_of(bpe, tmp_path, dropout=0.0)
    assert all_rows(epoch(sampled, 0)) == all_rows(base)


def test_a_large_alpha_gives_the_likeliest_pieces_of_the_unigram_tokenizer(unigram, tmp_path):
    base, sampled = corpus_of(unigram, tmp_path, alpha=1e6)
    assert all_rows(epoch(sampled, 0)) == all_rows(base)


@pytest.mark.parametrize(("algorithm", "settings"), [("bpe", {"dropout": 0.3}), ("unigram", {"alpha": 0.2})])
def test_sampled_pieces_are_of_the_same_text_and_others_in_each_epoch(algorithm, settings, tmp_path, request):
    tokenizer = request.getfixturevalue(algorithm)
    base, sampled = corpus_of(tokenizer, tmp_path, **settings)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in all_rows(base)["source"]]
    drawn = [epoch(sampled, number) for number in range(3)]
    for one in drawn:
        rows = all_rows(one)
        assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in rows["source"]] == texts == SENTENCES
        assert all(ids[-1] == tokenizer.eos_token_id for ids in rows["target"])
        assert {name: list(map(len, column)) for name, column in rows.items()} == {
            name: lengths.tolist() for name, lengths in one.lengths.items()
        }
    assert all_rows(drawn[0]) != all_rows(drawn[1]) != all_rows(drawn[2])
    # A run that is taken up again draws them anew, from any epoch on.
    _, again = corpus_of(tokenizer, tmp_path, **settings)
    assert all_rows(epoch(again, 2)) == all_rows(drawn[2])
    assert again.tokens == sampled.tokens != base.tokens
    _, other = corpus_of(tokenizer, tmp_path, seed=2, **settings)
    assert all_rows(epoch(other, 0)) != all_rows(drawn[0])


def test_one_side_alone_is_sampled(bpe, tmp_path):
    base, sampled = corpus_of(bpe, tmp_path, dropout=0.5, columns=("source",))
    usual, drawn = all_rows(base), all_rows(epoch(sampled, 0))
    assert drawn["target"] == usual["target"] and drawn["source"] != usual["source"]
    [lengths] = sampled.all_lengths()
    assert sampled.token_counts == tuple(side.sum() for side in lengths)
    assert sampled.token_counts[0] > base.token_counts[0] and sampled.token_counts[1] == base.token_counts[1]


def merge_one_by_one(word, ranks, dropout, random):
    """Algorithm 1 of Provilkov et al. 2020, as plain as it is written there."""
    pieces = list(word)
    while True:
        pairs = list(enumerate(zip(pieces, pieces[1:], strict=False)))
        merges = [(ranks[pair], place) for place, pair in pairs if pair in ranks and random.random() >= dropout]
        if not merges:
            return tuple(pieces)
        place = min(merges)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


def differences(found, expected):
    """Chi-square over its degrees of freedom, of ways that are there often enough; 1 is what chance gives."""
    ways = [way for way in expected if expected[way] >= 20]
    return sum((found[way] - expected[way]) ** 2 / (found[way] + expected[way]) for way in ways) / len(ways)


def test_bpe_dropout_draws_as_its_algorithm_does(bpe):
    model, draws = model_of(bpe), 20_000
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    random, names = np.random.default_rng(0), {number: piece for piece, number in bpe.get_vocab().items()}
    sampler = BpeDropout(bpe, model, ["Ġwalking", "Ġhappily"], 0.3)
    pieces = sampler.sample(np.repeat([0, 1], draws), random)
    for number, word in enumerate(["Ġwalking", "Ġhappily"]):
        mine = pieces.select(np.arange(draws) + number * draws)
        bounds = zip(mine.starts[:-1], mine.starts[1:], strict=True)
        found = Counter(tuple(names[i] for i in mine.values[start:end].tolist()) for start, end in bounds)
        expected = Counter(merge_one_by_one(word, ranks, 0.3, random) for _ in range(draws))
        assert len(expected) > 10
        assert differences(found, expected) < 1.8


def test_unigram_sampling_draws_by_the_probability_of_each_way(unigram):
    model, draws, alpha = model_of(unigram), 50_000, 0.3
    scores = dict(model["vocab"])
    names = {number: piece for piece, number in unigram.get_vocab().items()}

    def ways(word):
        if not word:
            yield ()
        for end in range(1, len(word) + 1):
            if word[:end] in scores:
                yield from ((word[:end], *rest) for rest in ways(word[end:]))

    shares = {way: math.exp(alpha * sum(scores[piece] for piece in way)) for way in ways("Ġwalking")}
    expected = {way: draws * share / sum(shares.values()) for way, share in shares.items()}
    sampler = UnigramSampling(unigram, model, ["Ġthe", "Ġwalking"], alpha)
    drawn = sampler.sample(np.ones(draws, dtype=np.int64), np.random.default_rng(0))
    bounds = zip(drawn.starts[:-1], drawn.starts[1:], strict=True)
    found = Counter(tuple(names[i] for i in drawn.values[start:end].tolist()) for start, end in bounds)
    often = [way for way in expected if expected[way] >= 20]
    assert len(often) > 5 and set(found) <= set(expected)
    assert sum((found[way] - expected[way]) ** 2 / expected[way] for way in often) / len(often) < 1.8


def test_a_row_that_grows_too_long_keeps_its_usual_pieces(bpe, tmp_path):
    longest = max(len(ids) for ids in bpe(SENTENCES)["input_ids"])
    sentences = [*SENTENCES, "walking it"]
    base, sampled = corpus_of(bpe, tmp_path, dropout=0.9, max_length=longest, sentences=sentences)
    usual, drawn = all_rows(base)["source"], all_rows(epoch(sampled, 0))["source"]
    assert max(map(len, drawn)) <= longest
    kept = [ids == row for ids, row in zip(drawn, usual, strict=True)]
    assert any(kept) and not all(kept)


def test_words_that_are_none_and_added_tokens_stay_as_they_are(bpe, tmp_path):
    tokenizer = VanillaTransformerTokenizer.train(SENTENCES * 3, 350, "bpe")
    tokenizer.add_tokens(["<de>"], special_tokens=True)
    long = "x" * (LONGEST_WORD + 1)
    base, sampled = corpus_of(tokenizer, tmp_path, dropout=0.5, sentences=[f"<de> walking {long}", "walking <de> it"])
    added = tokenizer.convert_tokens_to_ids("<de>")
    usual, drawn = all_rows(base)["source"], all_rows(epoch(sampled, 0))["source"]
    end = tokenizer(long, add_special_tokens=False)["input_ids"]
    assert drawn[0][0] == usual[0][0] == added and drawn[0][-1 - len(end) : -1] == end
    assert drawn[1].count(added) == 1 and drawn != usual
    for ids, row in zip(drawn, usual, strict=True):
        assert tokenizer.decode(ids) == tokenizer.decode(row)


def test_each_epoch_of_a_mixture_has_its_own_rows_sampled(bpe, tmp_path):
    parts = [
        prepared(bpe, tmp_path / "large", [f"walk {number} walking" for number in range(12)]),
        prepared(bpe, tmp_path / "small", [f"happily {number}" for number in range(5)]),
    ]
    mixed = MixedCorpus(parts, [0.7, 0.3], seed=3)
    sampled = SampledCorpus(mixed, bpe, bpe_dropout=0.4, columns=BOTH, max_length=400, seed=3)
    for number in range(3):
        usual, drawn = all_rows(mixed.of_epoch(number))["source"], all_rows(epoch(sampled, number))["source"]
        assert [bpe.decode(ids) for ids in drawn] == [bpe.decode(ids) for ids in usual]
        assert drawn != usual


@pytest.mark.parametrize(
    ("algorithm", "settings", "named"),
    [
        ("unigram", {"dropout": 0.1}, "bpe_dropout bpe"),
        ("bpe", {"alpha": 0.1}, "unigram_alpha unigram"),
    ],
)
def test_a_tokenizer_of_another_algorithm_is_refused(algorithm, settings, named, tmp_path, request):
    with refused(CorpusError, *named.split()):
        corpus_of(request.getfixturevalue(algorithm), tmp_path, **settings)


def test_an_algorithm_without_anything_to_draw_is_refused(tmp_path):
    with refused(CorpusError, "bpe_dropout", "bpe"):
        corpus_of(learn("wordpiece"), tmp_path, dropout=0.1)


def test_words_that_do_not_make_up_their_pieces_are_refused(bpe):
    class Halves(PreparedCorpus):
        """Half a character is no text."""

        lengths = dict.fromkeys(BOTH, np.array([1]))
        tokens, texts, report = "", (), PreparationReport(1, 1, 0, 0)

        def rows(self, indices):
            return {name: [np.array([bpe.convert_tokens_to_ids("Ã")], dtype=np.uint16)] for name in BOTH}

    with refused(CorpusError, "row 1", "words"):
        SampledCorpus(Halves(), bpe, bpe_dropout=0.1, columns=BOTH, max_length=400, seed=1)


def test_a_tokenizer_that_splits_in_a_way_of_its_own_is_refused(bpe, tmp_path):
    parts = json.loads(bpe.backend_tokenizer.to_str())
    parts["model"]["ignore_merges"] = True
    other = VanillaTransformerTokenizer(tokenizer_object=Tokenizer.from_str(json.dumps(parts)))
    with refused(CorpusError, "words", "random"):
        corpus_of(other, tmp_path, dropout=0.1)


@pytest.mark.parametrize(("algorithm", "settings"), [("bpe", {"dropout": 0.0}), ("unigram", {"alpha": 1e6})])
def test_sampling_never_splits_the_mask_token(algorithm, settings, tmp_path):
    masked = VanillaTransformerTokenizer.train(SENTENCES * 3, 350, algorithm, mask_token=True)
    sentences = [*SENTENCES, "walking <mask> it"]
    base, usual = corpus_of(masked, tmp_path, sentences=sentences, **settings)
    assert all_rows(epoch(usual, 0)) == all_rows(base)
    _, drawn = corpus_of(masked, tmp_path, sentences=sentences, **dict.fromkeys(settings, 0.5))
    rows, expected = all_rows(epoch(drawn, 0))["source"], all_rows(base)["source"]
    assert rows != expected and [masked.decode(ids) for ids in rows] == [masked.decode(ids) for ids in expected]
    assert rows[-1].count(masked.mask_token_id) == 1


def test_tags_stay_with_the_first_pieces_of_their_words(bpe, tmp_path):
    sentences = [["unhappily", "it's", "2016", "walking"], ["(walks)", "U.S.", "it", "läuft"]]
    rows = {"words": ["\t".join(words) for words in sentences], "tags": ["A\tB\tA\tB", "B\tB\tA\tA"]}
    encoder = get_task("token-classification").encoder(Recipe.of(task="token-classification", labels=("A", "B")))
    base = prepare_corpus(Dataset.from_dict(rows), bpe, encoder, max_length=400, directory=tmp_path)
    sampled = SampledCorpus(
        base, bpe, bpe_dropout=0.4, columns=("words",), form=TAGGED_SENTENCES, max_length=400, seed=1
    )
    drawn = [all_rows(epoch(sampled, number)) for number in range(3)]
    assert drawn[0]["words"] != drawn[1]["words"] != all_rows(base)["words"]
    for one in drawn:
        assert one["tags"] == all_rows(base)["tags"]
        for ids, words in zip(one["words"], sentences, strict=True):
            begins = [place for place, number in enumerate(ids) if number % 2]
            ends = [*begins[1:], len(ids) - 1]
            pieces = [[number // 2 for number in ids[a:b]] for a, b in zip(begins, ends, strict=True)]
            assert [bpe.decode(piece) for piece in pieces] == words
            assert ids[-1] == 2 * bpe.eos_token_id


def test_blocks_that_end_within_a_character_keep_their_pieces(tmp_path):
    masked = VanillaTransformerTokenizer.train(SENTENCES * 3, 275, begins=True, mask_token=True)
    task = get_task("masked-language-modeling")
    encoder = task.encoder(Recipe.of(task=task.name, max_length=5))
    texts = Dataset.from_dict({"text": ["walking walking", "日本語 walking"]})
    base = prepare_corpus(texts, masked, encoder, max_length=5, directory=tmp_path)
    settings = {"form": task.form, "max_length": 5, "seed": 1}
    sampled = SampledCorpus(base, masked, bpe_dropout=0.0, columns=("text",), **settings)
    assert len(base) > 4 and all_rows(epoch(sampled, 0)) == all_rows(base)


@pytest.mark.parametrize(("algorithm", "settings"), [("bpe", {"dropout": 0.0}), ("unigram", {"alpha": 1e6})])
def test_words_after_an_added_token_are_sampled_as_they_stand(algorithm, settings, tmp_path):
    added = VanillaTransformerTokenizer.train(SENTENCES * 3, 350, algorithm)
    added.add_special_tokens({"extra_special_tokens": [">>de<<"]})
    base, usual = corpus_of(added, tmp_path, sentences=[">>de<<walking it", "it>>de<< walking it"], **settings)
    assert all_rows(epoch(usual, 0)) == all_rows(base)
