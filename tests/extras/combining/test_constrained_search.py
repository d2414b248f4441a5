"""Beam search with required phrases: each hypothesis holds them, and a wide enough beam finds the best that does."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.engine.search import BeamSearch, Limits
from vanilla_transformer.extras.combining.constrained_search import RequiredPhrases
from vanilla_transformer.model.generation import GoogleLengthPenalty

VOCABULARY, START, END = 6, 1, 2


class Table:
    """Logits by the token before."""

    def __init__(self, table_VV):
        self.table_VV = table_VV

    def read(self, tokens_NP):
        pass

    def step(self, tokens_NW):
        return self.table_VV[tokens_NW.flatten()].clone()

    def reorder(self, parents_NW):
        pass

    def select(self, sentences):
        pass


def limits(*lengths, **changes):
    tensor = torch.tensor(lengths)
    plain = Limits(torch.tensor([END]), 8, tensor, tensor, 1, GoogleLengthPenalty(0.6), early_stopping="never")
    return plain._replace(**changes)


def table(seed):
    return torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def search(table_VV, width, limits, phrases, begin=(), end=()):
    required = RequiredPhrases(phrases, frozenset(begin), frozenset(end))
    prompts = torch.full((len(phrases), 1), START)
    return required.beam_search(Table(table_VV), prompts, width, limits).run()


def tokens_of(found, sentence, place=0):
    return found.paths[sentence, place, 0, : found.lengths[sentence, place]].tolist()


def holds(tokens, phrase, begin=frozenset(), end=frozenset()):
    for start in range(len(tokens) - len(phrase) + 1):
        after = start + len(phrase)
        goes_on = after < len(tokens) and tokens[after] in begin and tokens[after - 1] in end
        if tuple(tokens[start:after]) == phrase and not goes_on:
            return True
    return False


def best_of_all(table_VV, longest, phrases, begin=frozenset(), end=frozenset()):
    """By looking at every sequence."""
    log_p = table_VV.log_softmax(-1)
    every = []
    for length in range(1, longest + 1):
        for tokens in itertools.product(range(VOCABULARY), repeat=length):
            if END in tokens[:-1] or (tokens[-1] != END and length < longest):
                continue
            if all(holds(tokens, phrase, begin, end) for phrase in phrases):
                score = sum(float(log_p[a, b]) for a, b in zip((START, *tokens), tokens, strict=False))
                every.append(score / ((5 + length) / 6) ** 0.6)
    return max(every)


@pytest.mark.parametrize(
    ("phrases", "begin", "end"),
    [
        ([(3,)], (), ()),
        ([(3, 4)], (), ()),
        ([(3, 3, 4)], (), ()),
        ([(3,), (4, 5)], (), ()),
        ([(3,)], (4, 5), (3, 4, 5)),
        ([(3, 4), (0,)], (4, 5), (0, 3, 4, 5)),
    ],
)
def test_exhaustive_beam_finds_the_best_sequence_with_the_phrases(phrases, begin, end):
    for seed in range(3):
        found = search(table(seed), 700, limits(4), [phrases], begin, end)
        score = best_of_all(table(seed), 4, phrases, frozenset(begin), frozenset(end))
        assert all(holds(tokens_of(found, 0), phrase, set(begin), set(end)) for phrase in phrases)
        assert float(found.scores[0, 0]) == pytest.approx(score, abs=1e-5)


PHRASE = st.lists(st.sampled_from([0, 1, 3, 4, 5]), min_size=1, max_size=3).map(tuple)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 50),
    phrases=st.lists(st.lists(PHRASE, min_size=0, max_size=3, unique=True), min_size=1, max_size=4),
    width=st.integers(2, 8),
    spare=st.integers(0, 6),
    joins=st.booleans(),
)
def test_every_hypothesis_holds_every_phrase_however_little_room_there_is(seed, phrases, width, spare, joins):
    begin, end = (frozenset({4, 5}), frozenset({0, 3, 4, 5})) if joins else (frozenset(), frozenset())
    # What begins a word wherever it stands.
    phrases = [[phrase for phrase in ones if phrase[0] not in begin] for ones in phrases]
    lengths = [sum(map(len, ones)) + spare + 1 for ones in phrases]
    for early_stopping in ("never", True, False):
        asked = limits(*lengths, early_stopping=early_stopping)
        found = search(table(seed), width, asked, phrases, begin, end)
        for sentence, ones in enumerate(phrases):
            for place in range(width):
                tokens = tokens_of(found, sentence, place)
                assert 0 < len(tokens) <= lengths[sentence]
                assert all(holds(tokens, phrase, begin, end) for phrase in ones), (tokens, ones)


def test_a_search_without_phrases_is_the_ordinary_one():
    for seed in range(5):
        asked = limits(9, 4, candidates=6)
        found = search(table(seed), 3, asked, [[], []])
        expected = BeamSearch(Table(table(seed)), torch.full((2, 1), START), 3, asked).run()
        for sentence in range(2):
            assert tokens_of(found, sentence) == tokens_of(expected, sentence)
        torch.testing.assert_close(found.scores[:, 0], expected.scores[:, 0])


def test_phrases_that_cannot_be_required_are_refused(tiny_model):
    with refused(ValueError, "3", "2", "max_length_beyond_source"):
        search(table(0), 4, limits(2), [[(3, 4, 5)]])
    required = RequiredPhrases([[(5, 6)]], frozenset(), frozenset())
    ids = torch.tensor([[4, 5, 2]])
    for asked in ({"num_beams": 1}, {"num_beams": 2, "output_scores": True, "return_dict_in_generate": True}):
        with refused(ValueError, "phrases", "beam"):
            tiny_model.generate(ids, logits_processor=[required], **asked)
    with refused(ValueError, "tokens", "settings"):
        tiny_model.generate(ids, logits_processor=[required], suppress_tokens=[6])


def test_generate_takes_phrases_for_each_sentence(tiny_model):
    ids = torch.tensor([[4, 5, 6, 2], [7, 8, 2, 0], [9, 10, 11, 2]])
    phrases = [[(20, 21), (30,)], [(40, 41, 42)], [(5,)]]
    found = tiny_model.generate(
        ids,
        attention_mask=(ids != 0).long(),
        logits_processor=[RequiredPhrases(phrases, frozenset(), frozenset())],
        num_return_sequences=2,
        max_length_beyond_source=4,
        return_dict_in_generate=True,
    )
    for row, tokens in enumerate(found.sequences.tolist()):
        assert all(holds(tokens, phrase) for phrase in phrases[row // 2])
    # Its scores are those of the model.
    for row, tokens in enumerate(found.sequences):
        length = int((tokens[1:] != 0).sum())
        source = ids[row // 2 : row // 2 + 1]
        logits = tiny_model(
            source, attention_mask=(source != 0).long(), decoder_input_ids=tokens[None, :length]
        ).logits
        log_p = logits[0].log_softmax(-1).gather(1, tokens[1 : length + 1, None]).sum()
        torch.testing.assert_close(found.sequences_scores[row], log_p / ((5 + length) / 6) ** 0.6)
