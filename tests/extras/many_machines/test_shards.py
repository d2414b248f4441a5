"""A corpus in shards: epochs in parts that hold every row once, files that are fetched in time, and damage."""

import itertools
import json
import shutil
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.data.batching import StepPlan
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.token_corpus import TokenFile
from vanilla_transformer.extras.many_machines import shards
from vanilla_transformer.extras.many_machines.sharding import ShardPreparation
from vanilla_transformer.extras.many_machines.shards import ShardedCorpus, cut_epoch
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train

SIZES = [5, 0, 9, 4, 7, 8, 3]
_STORES = itertools.count()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A directory with a shard of each size; each pair says its shard and row."""
    directory = tmp_path_factory.mktemp("corpus")
    words = []
    for shard, size in enumerate(SIZES):
        for side in "st":
            lines = [f"{side} {shard} {'x' * (row % 4)} {row}" if size else "" for row in range(max(size, 1))]
            (directory / f"{side}{shard}").write_text("".join(f"{line}\n" for line in lines))
        words += ["+", str(directory / f"s{shard}"), str(directory / f"t{shard}")]
    recipe = Recipe.of(train=tuple(words[1:]), vocab_size=270)
    preparation = ShardPreparation(recipe, str(directory / "shards"), 1, print)
    # A piece for each corpus, and so a shard.
    pieces = json.loads((directory / "shards" / "pieces.json").read_text())["places"]
    preparation.tasks, preparation._places_of_task = len(SIZES), 1
    preparation._pieces = [
        [piece for place in preparation._pieces for piece in place if piece.corpus == shard]
        for shard in range(len(SIZES))
    ]
    assert pieces
    for number in range(len(SIZES)):
        preparation.run_task(number)
    assert [shard.rows for shard in preparation.finish().shards] == SIZES
    return directory / "shards"


def rows_of(corpus):
    """All rows of a part, as pairs of tuples."""
    rows = corpus.rows(np.arange(len(corpus)))
    return [
        tuple(map(tuple, pair))
        for pair in zip(*(map(np.ndarray.tolist, column) for column in rows.values()), strict=True)
    ]


def opened(url, tmp_path, part_pairs=12, seed=1):
    return ShardedCorpus(str(url), seed=seed, part_pairs=part_pairs, copies=tmp_path / "copies")


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any),
    most=st.integers(50, 400),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_every_shard_is_in_one_part_of_an_epoch_and_no_part_is_too_large(rows, most, seed, epoch):
    parts = cut_epoch(rows, most, seed, epoch)
    assert sorted(itertools.chain.from_iterable(parts)) == [shard for shard, count in enumerate(rows) if count]
    assert all(0 < sum(rows[shard] for shard in part) <= most for part in parts)
    assert parts == cut_epoch(rows, most, seed, epoch)
    if sum(rows) <= most:
        assert len(parts) == 1 and parts[0] == sorted(parts[0])


def test_the_order_of_shards_is_another_in_each_epoch_and_for_each_seed():
    assert len({str(cut_epoch([10] * 20, 50, seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_a_shard_larger_than_a_part_is_refused(prepared, tmp_path):
    with refused(CorpusError, "shard 2", "9 rows", "8"):
        opened(prepared, tmp_path, part_pairs=8)


@settings(max_examples=25, deadline=None)
@given(part_pairs=st.integers(9, 60), epoch=st.integers(0, 3), seed=st.integers(0, 3))
def test_every_row_comes_once_in_the_steps_of_an_epoch(prepared, tmp_path_factory, part_pairs, epoch, seed):
    corpus = opened(prepared, tmp_path_factory.mktemp("none"), part_pairs, seed)
    numbers, found, shares = [], [], []
    for part in corpus.epoch_parts(epoch):
        plan = StepPlan(*part.corpus.lengths.values(), batch_tokens=60, batches_per_step=2, seed=seed)
        assert part.before == pytest.approx(sum(shares))
        shares.append(part.share)
        for step in plan.epoch(epoch, part.number):
            for rows in step.batches:
                numbers += part.corpus.row_numbers(rows).tolist()
                sides = list(part.corpus.rows(rows).values())
                assert all(len(ids) == plan.lengths[0][row] for ids, row in zip(sides[0], rows, strict=True))
                found += [ids.tobytes() for ids in sides[0]]
    assert sorted(numbers) == list(range(sum(SIZES))) and sum(shares) == pytest.approx(1)
    by_number = dict(zip(numbers, found, strict=True))
    everything = next(iter(opened(prepared, tmp_path_factory.mktemp("none"), 100).epoch_parts(0))).corpus
    whole = [ids.tobytes() for ids in everything.rows(np.arange(len(everything)))["source"]]
    assert [by_number[number] for number in range(len(whole))] == whole


def test_a_corpus_that_fits_into_one_part_is_one_in_order(prepared, tmp_path):
    corpus = opened(prepared, tmp_path, part_pairs=sum(SIZES))
    (part,) = corpus.epoch_parts(5)
    assert (part.number, part.before, part.share) == (0, 0.0, 1.0)
    assert part.corpus.row_numbers(np.arange(36)).tolist() == list(range(36)) and len(corpus) == 36
    assert corpus.token_counts == tuple(int(lengths.sum()) for lengths in part.corpus.lengths.values())
    assert sum(len(lengths) for lengths, _ in corpus.all_lengths()) == 36


@pytest.fixture
def elsewhere(prepared):
    """The same corpus in a store that is not this disk."""
    url = f"memory://shards-{next(_STORES)}"
    filesystem, path = fsspec.url_to_fs(url)
    filesystem.put(str(prepared), path, recursive=True)
    return url


def test_shards_elsewhere_are_here_for_a_part_and_the_next_one_alone(prepared, elsewhere, tmp_path):
    local, remote = opened(prepared, tmp_path), opened(elsewhere, tmp_path)
    assert local.tokens == remote.tokens
    counts = []
    for epoch in range(3):
        for one, other in zip(local.epoch_parts(epoch), remote.epoch_parts(epoch), strict=True):
            assert rows_of(one.corpus) == rows_of(other.corpus)
            remote._next[1].result()
            counts.append(len(list((tmp_path / "copies").glob("*.arrow"))))
    there = {len(part) for epoch in range(4) for part in local._shards_of_parts(epoch)}
    assert 0 < max(counts) <= 2 * max(there) < len(SIZES)


def test_the_next_part_is_fetched_while_one_is_in_use(elsewhere, tmp_path):
    corpus = opened(elsewhere, tmp_path)
    parts, (first, second, *_) = corpus.epoch_parts(0), corpus._shards_of_parts(0)
    next(parts)
    corpus._next[1].result()
    there = {path.name for path in (tmp_path / "copies").glob("*.arrow")}
    assert there == {shards.tokens_name(shard) for shard in {*first, *second}}


def test_failed_fetch_is_reported_when_its_part_is_due(elsewhere, tmp_path):
    corpus = opened(elsewhere, tmp_path)
    second = corpus._shards_of_parts(0)[1][0]
    filesystem, path = fsspec.url_to_fs(elsewhere)
    filesystem.rm(f"{path}/{shards.tokens_name(second)}")
    parts = corpus.epoch_parts(0)
    next(parts)
    with refused(CorpusError, f"tokens-0000{second}.arrow"):
        next(parts)


def test_a_part_is_let_go_when_the_next_one_is_asked_for(prepared, tmp_path):
    import gc
    import weakref

    parts = opened(prepared, tmp_path).epoch_parts(0)
    first = weakref.ref(next(parts).corpus)
    gc.collect()
    assert first() is None


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda place: (place / "manifest.json").unlink(), "manifest.json"),
        (lambda place: (place / "manifest.json").write_text("{"), "manifest.json damaged"),
        (lambda place: (place / "manifest.json").write_text('{"layout": 0}'), "manifest.json damaged"),
        (
            lambda place: (place / "tokens-00002.arrow").write_bytes(b"x"),
            "tokens-00002.arrow 1 bytes",
        ),
        (
            lambda place: (place / "lengths-00003.npy").unlink(),
            "shard 3 tokens-00003.arrow task 3",
        ),
        (
            lambda place: swap(place, "tokens-00002.arrow"),
            "tokens-00002.arrow",
        ),
    ],
)
def test_damage_is_named_in_one_sentence(prepared, tmp_path, damage, named):
    place = tmp_path / "shards"
    shutil.copytree(prepared, place)
    damage(place)
    with refused(CorpusError, *named.split()):
        list(opened(place, tmp_path, 100).epoch_parts(0))


@pytest.mark.parametrize("name", ["tokens-00002.arrow", "lengths-00002.npy"])
def test_a_flipped_bit_is_refused_unless_it_changes_nothing(prepared, tmp_path, name):
    place = tmp_path / "shards"
    shutil.copytree(prepared, place)
    whole = (place / name).read_bytes()
    (part,) = opened(prepared, tmp_path, 100).epoch_parts(0)
    rows, refused = rows_of(part.corpus), 0
    for byte in range(0, len(whole), 5):
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << byte % 8
        (place / name).unlink()
        (place / name).write_bytes(damaged)
        try:
            (part,) = opened(place, tmp_path, 100).epoch_parts(0)
        except CorpusError as error:
            refused += "delete tokens-00002.arrow, and run task 2 of" in str(error)
        else:
            assert rows_of(part.corpus) == rows
    assert refused > len(whole) / 10


def test_a_shard_is_read_from_end_to_end_once_in_a_process(prepared, tmp_path, monkeypatch):
    read, original = [], TokenFile.hexdigest
    monkeypatch.setattr(TokenFile, "hexdigest", lambda file: (read.append(file.id), original(file))[1])
    corpus = opened(prepared, tmp_path)
    for epoch in range(3):
        for _ in corpus.epoch_parts(epoch):
            corpus._next[1].result()
    assert len(read) == len(set(read)) == sum(size > 0 for size in SIZES)


def test_lengths_that_are_not_those_of_the_manifest_are_not_counted(prepared, tmp_path):
    place = tmp_path / "shards"
    shutil.copytree(prepared, place)
    counts = np.load(place / "lengths-00002.npy")
    counts[0, 3] ^= 1 << 12
    np.save(place / "lengths-00002.npy", counts)
    with refused(CorpusError, "lengths-00002.npy"):
        list(opened(place, tmp_path, 100).all_lengths())


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (Path.unlink, "tokenizer.json prepare"),
        (lambda file: file.write_text("{"), "tokenizer.json"),
    ],
)
def test_a_folder_without_its_tokenizer_is_told_with_the_file(prepared, tmp_path, damage, named):
    place = tmp_path / "shards"
    shutil.copytree(prepared, place)
    damage(place / "tokenizer.json")
    with refused(CorpusError, *named.split()):
        train(Recipe.of(train=(f"prepared:{place}",), output=str(tmp_path / "model"), max_steps=1))


def swap(place, name):
    """Another shard's file of the same size."""
    content = (place / name).read_bytes()
    identity = json.loads((place / "manifest.json").read_text())["shards"][2]["id"].encode()
    (place / name).write_bytes(content.replace(identity, identity[::-1]))


def test_a_row_of_any_length_is_kept(tmp_path, prepared):
    for side in "st":
        (tmp_path / side).write_text(f"{'x ' * 70_000}\n")
    recipe = Recipe.of(train=(str(tmp_path / "s"), str(tmp_path / "t")), max_length=200_000, tokenizer=str(prepared))
    preparation = ShardPreparation(recipe, str(tmp_path / "out"), 1, print)
    preparation.run_task(0)
    assert preparation.finish().report.kept == 1
    (part,) = opened(tmp_path / "out", tmp_path).epoch_parts(0)
    ids = part.corpus.rows([0])["source"][0]
    assert part.corpus.lengths["source"].tolist() == [len(ids)] and len(ids) > 1 << 16
    assert partial(np.load, tmp_path / "out" / "lengths-00000.npy")().dtype == np.uint32
