import dataclasses
import gzip
import json
import os

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, Features, IterableDataset, Value
from refusals import refused

from vanilla_transformer.data import corpus, text_streams
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.data.text_streams import sample_rows, stream_of
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.tasks import get_task

TASK = get_task("translation")

PAIRS = [(f"source {number}", f"Ziel {number}") for number in range(7)]


def pairs_in(stream):
    return [tuple(row.values()) for table in stream.tables() for row in table.to_pylist()]


def rows(pairs=PAIRS):
    return {"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]}


def with_settings(function):
    """The function of a corpus with its settings as arguments."""

    def call(words, cache_dir=None, **settings):
        return function(CorpusSpec(tuple(words), **settings), cache_dir=cache_dir)

    return call


open_corpus, read_corpus = with_settings(corpus.open_corpus), with_settings(corpus.read_corpus)
corpus_languages = with_settings(corpus.corpus_languages)


@pytest.fixture
def lines(tmp_path):
    paths = tmp_path / "a.en", tmp_path / "a.de.gz"
    paths[0].write_text("".join(f"{source}\n" for source, _ in PAIRS))
    paths[1].write_bytes(gzip.compress("".join(f"{target}\n" for _, target in PAIRS).encode()))
    return [str(path) for path in paths]


@pytest.fixture
def folder(tmp_path):
    """A dataset as the Hub has them: two configurations in its card, shards of JSON lines, languages in a column."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: en-de\n  data_files:\n  - {split: train, path: 'train-*.jsonl'}\n"
        "  - {split: test, path: test.jsonl}\n"
        "- config_name: broken\n  data_files: broken.jsonl\n---\n"
    )
    for name, pairs in {"train-0": PAIRS[:3], "train-1": PAIRS[3:], "test": PAIRS[:1]}.items():
        records = ({"id": 1, "translation": {"en": source, "de": target}} for source, target in pairs)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "broken.jsonl").write_text('{"en": "a", "de": "b"}\n' * 3 + "no JSON\n")
    return folder


@pytest.fixture
def tokenizer():
    return VanillaTransformerTokenizer.train(["source Ziel"], 262)


def test_files_are_gone_through_as_often_as_asked_without_a_copy(tmp_path, lines):
    stream = open_corpus(lines, cache_dir=tmp_path / "cache")
    assert pairs_in(stream) == pairs_in(stream) == PAIRS
    assert not (tmp_path / "cache").exists()


def test_every_form_of_a_corpus_is_a_stream(tmp_path, folder):
    (tmp_path / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    Dataset.from_dict(rows()).to_parquet(tmp_path / "a.parquet")
    DatasetDict(train=Dataset.from_dict(rows())).save_to_disk(tmp_path / "saved")
    columns = {"source_column": "en", "target_column": "de"}
    how = {"cache_dir": tmp_path / "cache"}
    assert pairs_in(open_corpus([str(tmp_path / "a.tsv")], **how)) == PAIRS
    assert pairs_in(open_corpus([str(tmp_path / "a.parquet")], **how)) == PAIRS
    assert pairs_in(open_corpus([f"{tmp_path / 'saved'}:train"], **how)) == PAIRS
    assert pairs_in(open_corpus([f"{folder}:en-de:train"], **columns, **how)) == PAIRS
    assert len(pairs_in(open_corpus(["cmudict:dev"], **how))) == 2_735


def test_columns_of_a_stream_are_found_and_missed_as_those_of_a_table(folder):
    assert pairs_in(open_corpus([f"{folder}:en-de:test"])) == PAIRS[:1]
    with refused(CorpusError, "'fr'", "'en'", "'de'"):
        open_corpus([f"{folder}:en-de:train"], source_column="fr", target_column="de")
    with refused(CorpusError, "dev"):
        open_corpus([f"{folder}:en-de:dev"])


def test_a_stream_that_cannot_be_read_is_told_in_one_sentence(folder):
    with refused(CorpusError, "corpus"):
        pairs_in(open_corpus([f"{folder}:broken:train"]))


def test_a_stamp_is_another_if_a_file_or_the_columns_are(tmp_path, folder, lines):
    def stamps():
        how = {"source_column": "en", "target_column": "de", "cache_dir": tmp_path / "cache"}
        swapped = how | {"source_column": "de", "target_column": "en"}
        dataset = [f"{folder}:en-de:train"]
        return [open_corpus(lines).stamp, open_corpus(dataset, **how).stamp, open_corpus(dataset, **swapped).stamp]

    before = stamps()
    assert before == stamps() and len(set(before)) == 3
    for path in (lines[0], folder / "train-1.jsonl"):
        status = os.stat(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    after = stamps()
    assert all(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.from_dict(rows()),
        Dataset.from_dict(rows()).to_iterable_dataset(num_shards=3),
        IterableDataset.from_generator(lambda: ({"source": source, "target": target} for source, target in PAIRS)),
        Dataset.from_dict(rows()).cast(Features({"source": Value("large_string"), "target": Value("string")})),
    ],
    ids=["dataset", "shards", "generator", "large_string"],
)
def test_datasets_in_hand_are_prepared_too(tmp_path, tokenizer, dataset):
    prepared = prepare_corpus(dataset, tokenizer, TASK, max_length=30, directory=tmp_path, progress=False)
    decoded = [tokenizer.decode(source, skip_special_tokens=True) for source in prepared.rows(range(7))["source"]]
    assert decoded == rows()["source"]


def test_interleaved_streams_of_the_library_are_prepared_too(tmp_path, tokenizer):
    parts = [Dataset.from_dict(rows(PAIRS[:2])).to_iterable_dataset(), Dataset.from_dict(rows()).to_iterable_dataset()]
    mixed = datasets.interleave_datasets(parts, probabilities=[0.5, 0.5], seed=1, stopping_strategy="all_exhausted")
    prepared = prepare_corpus(mixed, tokenizer, TASK, max_length=30, directory=tmp_path, progress=False)
    decoded = {
        tokenizer.decode(source, skip_special_tokens=True) for source in prepared.rows(range(len(prepared)))["source"]
    }
    assert len(prepared) > 7 and decoded == set(rows()["source"])


def test_a_dataset_in_hand_needs_both_columns_of_text():
    with refused(CorpusError, "'source'", "'en'", "'target'"):
        pairs_in(stream_of(Dataset.from_dict({"en": ["a"], "target": ["b"]})))
    with refused(CorpusError, "'target'", "int64"):
        pairs_in(stream_of(Dataset.from_dict({"source": ["a"], "target": [1]})))


def test_a_null_of_a_stream_is_an_empty_text():
    dataset = Dataset.from_dict({"source": ["a", None], "target": [None, "b"]}).to_iterable_dataset()
    assert pairs_in(stream_of(dataset)) == [("a", ""), ("", "b")]


def test_a_translation_column_without_types_gives_its_languages():
    untyped = Dataset.from_dict({"translation": [{"en": "a", "de": "b"}]})
    columns = text_streams.find_columns(untyped, (None, None), "here")
    assert {*columns.names} == {"en", "de"} and columns.parent == "translation"


@pytest.mark.parametrize("pairs_per_table", [1, 3, 10_000])
@pytest.mark.parametrize("most", [1, 2, 3, 6, 7, 100])
def test_a_sample_is_taken_at_equal_distances_from_all_corpora(streamed, pairs_per_table, most):
    corpora = [streamed(part, pairs_per_table) for part in (PAIRS[:5], PAIRS[5:])]
    counts, texts, sample = sample_rows(corpora, most)
    assert counts == [5, 2] and texts == [corpus.text_hash() for corpus in corpora]
    stride = next(stride for stride in (1, 2, 4, 8) if len(PAIRS[::stride]) <= most)
    assert sample == PAIRS[::stride]


def test_prepared_text_is_not_read_again_while_its_stamp_is_the_same(tmp_path, lines, tokenizer):
    reads = []

    def prepare():
        stream = open_corpus(lines)
        counted = dataclasses.replace(stream, tables=lambda: reads.append(stream) or stream.tables())
        return prepare_corpus(counted, tokenizer, TASK, max_length=30, directory=tmp_path / "tokens", progress=False)

    first = prepare()
    assert len(reads) == 1
    reads.clear()
    assert prepare().report == first.report and not reads
    written = (tmp_path / "tokens" / "tokens.arrow").stat().st_mtime_ns
    os.utime(lines[0])
    assert prepare().report == first.report and len(reads) == 1
    assert prepare().report == first.report and len(reads) == 1
    assert (tmp_path / "tokens" / "tokens.arrow").stat().st_mtime_ns == written


def test_a_changed_file_is_prepared_anew_even_with_the_old_time(tmp_path, lines, tokenizer):
    def prepare():
        return prepare_corpus(
            open_corpus(lines),
            tokenizer,
            TASK,
            max_length=30,
            directory=tmp_path / "t",
            progress=False,
        )

    prepare()
    before = os.stat(lines[0])
    with open(lines[0], "r+") as file:
        file.write("sourcE")
    os.utime(lines[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert tokenizer.decode(prepare().rows([0])["source"][0], skip_special_tokens=True) == "sourcE 0"


def test_tables_of_pairs_are_small_however_long_the_corpus_is():
    pairs = ((str(number), str(number)) for number in range(25_000))
    tables = list(text_streams.row_tables(pairs))
    assert [table.num_rows for table in tables] == [10_000, 10_000, 5_000]
    assert all(isinstance(table, pa.Table) for table in tables)
