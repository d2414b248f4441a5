import numpy as np
import pytest
from datasets import Dataset
from refusals import refused

from vanilla_transformer.data.preparation import PreparationReport, prepare_corpus
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.inputs import MixedCorpus


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(["news talk"], 262)


@pytest.fixture
def parts(tmp_path, tokenizer):
    """Corpora of 10, 4 and 1 pairs, each of its own words."""

    def prepared(name, size):
        pairs = {"source": [f"{name} {number}" for number in range(size)] + [""], "target": [name] * (size + 1)}
        corpus, task = Dataset.from_dict(pairs), get_task("translation").encoder(Recipe())
        return prepare_corpus(corpus, tokenizer, task, max_length=30, directory=tmp_path / name)

    return [prepared("news", 10), prepared("parliament", 4), prepared("law", 1)]


def texts(corpus, tokenizer):
    rows = corpus.rows(range(len(corpus))).values()
    return [tuple(tokenizer.decode(ids, skip_special_tokens=True) for ids in pair) for pair in zip(*rows, strict=True)]


def counts(corpus, tokenizer):
    """Returns the number of times that each pair occurs."""
    pairs, numbers = np.unique([source for source, _ in texts(corpus, tokenizer)], return_counts=True)
    return dict(zip(pairs.tolist(), numbers.tolist(), strict=True))


def test_without_weights_every_pair_is_there_once_in_order(parts, tokenizer):
    mixed = MixedCorpus(parts, seed=1)
    assert texts(mixed, tokenizer) == [pair for part in parts for pair in texts(part, tokenizer)]
    assert mixed.shares == [10, 4, 1]
    assert mixed.report == PreparationReport(read=18, kept=15, dropped_empty=3, dropped_too_long=0)


def test_rows_come_in_the_order_of_their_indices_and_lengths_are_theirs(parts, tokenizer):
    mixed = MixedCorpus(parts, [1, 2, 3], seed=1)
    indices = np.random.default_rng(0).permutation(len(mixed))
    rows = mixed.rows(indices)
    assert list(rows) == list(mixed.lengths) == ["source", "target"]
    for name, lengths in mixed.lengths.items():
        assert list(map(len, rows[name])) == lengths[indices].tolist()
    everything = texts(mixed, tokenizer)
    assert [tokenizer.decode(source, skip_special_tokens=True) for source in rows["source"]] == [
        everything[index][0] for index in indices
    ]


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [7, 1, 2], [1, 2, 300]])
def test_each_corpus_has_its_share_of_an_epoch_and_no_pair_is_left_out(parts, tokenizer, weights):
    mixed = MixedCorpus(parts, weights, seed=1)
    assert len(mixed) == sum(mixed.shares)
    for part, share, weight in zip(parts, mixed.shares, weights, strict=True):
        assert share == pytest.approx(len(mixed) * weight / sum(weights), abs=1.5)
        assert share >= len(part)
    assert any(share == len(part) for part, share in zip(parts, mixed.shares, strict=True))
    there = counts(mixed, tokenizer)
    for part, share in zip(parts, mixed.shares, strict=True):
        times = [there[source] for source, _ in texts(part, tokenizer)]
        assert sum(times) == share
        assert max(times) - min(times) <= 1


def test_fractional_repetitions_are_redrawn_in_each_epoch(parts, tokenizer):
    mixed = MixedCorpus(parts[:2], [10, 6], seed=1)
    epochs = [counts(mixed.of_epoch(epoch), tokenizer) for epoch in range(12)]
    # Four pairs, six places: all once, and in the course of the epochs each is among those that come again.
    assert all(sorted(epoch[f"parliament {number}"] for number in range(4)) == [1, 1, 2, 2] for epoch in epochs)
    assert all(any(epoch[f"parliament {number}"] == 2 for epoch in epochs) for number in range(4))
    assert texts(mixed.of_epoch(5), tokenizer) == texts(mixed.of_epoch(3).of_epoch(5), tokenizer)
    assert texts(mixed.of_epoch(3).of_epoch(0), tokenizer) == texts(mixed, tokenizer)
    assert {mixed.of_epoch(epoch).tokens for epoch in range(3)} == {mixed.tokens}
    assert texts(MixedCorpus(parts[:2], [10, 6], seed=2), tokenizer) != texts(mixed, tokenizer)


def test_weights_that_would_fill_the_memory_are_refused(parts):
    with refused(CorpusError, "1e-08", "0.5", "1,000,000,010 pairs"):
        MixedCorpus(parts, [1e-8, 0.5, 0.5], seed=1)
