import csv
import gzip
import io
import json
import os
import threading

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value
from faults import small_files
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.data.corpus import corpus_languages, open_corpus, read_corpus
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.errors import CorpusError

# Each row is a trap of some reader: quotes, words for missing values, separators, line breaks that are none.
PAIRS = [
    ("A dog runs.", "Ein Hund läuft."),
    ('"Go," he said, "now"', 'a "b'),
    ("null", "NA"),
    ("  spaces around ", "one\u2028two\x85three\fend"),
    ("12", "007"),
    ("", "a side may be empty"),
    ("same source", "first"),
    ("same source", "second 🙂"),
]


@pytest.fixture
def write(tmp_path):
    def call(name, content):
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return call


@pytest.fixture
def read(tmp_path):
    def call(*source, **arguments):
        corpus = read_corpus(CorpusSpec(tuple(map(str, source)), **arguments), cache_dir=tmp_path / "cache")
        assert corpus.features == {"source": Value("string"), "target": Value("string")}
        return list(zip(corpus["source"], corpus["target"], strict=True))

    return call


def lines(side):
    return "".join(pair[side] + "\n" for pair in PAIRS)


def tsv(header=""):
    return header + "".join(f"{source}\t{target}\n" for source, target in PAIRS)


def comma_separated(*names):
    text = io.StringIO()
    csv.writer(text).writerows([names, *PAIRS])
    return text.getvalue()


def json_lines(record):
    return "".join(json.dumps(record(source, target)) + "\n" for source, target in PAIRS)


def columns(source, target, **others):
    return Dataset.from_dict({source: [pair[0] for pair in PAIRS], target: [pair[1] for pair in PAIRS], **others})


def translations(*languages):
    return Dataset.from_dict(
        {"id": range(len(PAIRS)), "translation": [dict(zip(("en", "de"), pair, strict=True)) for pair in PAIRS]},
        features=Features({"id": Value("int64"), "translation": Translation(languages)}),
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_line_aligned_files(write, read, suffix):
    assert read(write(f"c.en{suffix}", lines(0)), write(f"c.de{suffix}", lines(1))) == PAIRS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.tsv", tsv()),
        ("c.tsv.gz", tsv()),
        ("c.TSV", tsv("source\ttarget\n")),
        ("c.csv", comma_separated("en", "de")),
        ("c.csv.gz", comma_separated("target language", "source language")),
        ("c.jsonl", json_lines(lambda source, target: {"en": source, "de": target})),
        ("c.jsonl", json_lines(lambda source, target: {"id": 1, "target": target, "source": source})),
        ("c.jsonl", json_lines(lambda source, target: {"Target": target, "SRC": source})),
        ("c.jsonl.gz", json_lines(lambda source, target: {"id": 1, "translation": {"en": source, "de": target}})),
    ],
)
def test_tables_whose_columns_are_plain_to_see(write, read, name, content):
    assert read(write(name, content)) == PAIRS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.tsv", "id\tde\ten\n" + "".join(f"1\t{target}\t{source}\n" for source, target in PAIRS)),
        ("c.csv", comma_separated("en", "de")),
        ("c.jsonl", json_lines(lambda source, target: {"id": 1, "de": target, "fr": None, "en": source})),
        ("c.jsonl", json_lines(lambda source, target: {"translation": {"fr": "x", "de": target, "en": source}})),
    ],
)
def test_named_columns_are_taken(write, read, name, content):
    path = write(name, content)
    assert read(path, source_column="en", target_column="de") == PAIRS
    assert read(path, source_column="de", target_column="en") == [(target, source) for source, target in PAIRS]


@pytest.mark.parametrize(
    "table",
    [
        columns("en", "de"),
        columns("source", "target", id=range(len(PAIRS))),
        translations("en", "de"),
        columns("en", "de").cast(Features({"en": Value("large_string"), "de": Value("string")})),
    ],
)
def test_parquet(tmp_path, read, table):
    table.to_parquet(tmp_path / "c.parquet")
    assert read(str(tmp_path / "c.parquet")) == PAIRS


def test_columns_of_a_tsv_file_without_a_header_are_taken_by_number(write, read):
    path = write("c.tsv", "".join(f"1\t{target}\t{source}\n" for source, target in PAIRS))
    assert read(path, source_column="3", target_column="2") == PAIRS


def test_named_columns_of_parquet_are_taken(tmp_path, read):
    swapped = [(target, source) for source, target in PAIRS]
    columns("source", "target").to_parquet(tmp_path / "columns.parquet")
    assert read(str(tmp_path / "columns.parquet"), source_column="target", target_column="source") == swapped
    translations("en", "de").to_parquet(tmp_path / "languages.parquet")
    assert read(str(tmp_path / "languages.parquet"), source_column="de", target_column="en") == swapped


def test_a_translation_column_gives_its_languages_in_its_own_order(tmp_path, read):
    translations("de", "en").to_parquet(tmp_path / "c.parquet")
    assert read(str(tmp_path / "c.parquet")) == [(target, source) for source, target in PAIRS]
    assert corpus_languages([str(tmp_path / "c.parquet")], cache_dir=tmp_path / "cache") == ("de", "en")


def test_a_directory_of_files_with_several_splits(tmp_path, read):
    folder = tmp_path / "folder"
    folder.mkdir()
    words = [("Null", "null"), ("n/a", "NA"), ("", "nan")]
    for split, rows in {"train": words, "test": words[:1]}.items():
        with open(folder / f"{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("en", "de"), *rows])
    assert read(f"{folder}:train") == words
    assert read(f"{folder}:test") == words[:1]
    with refused(CorpusError, f"{folder}:train", f"{folder}:test"):
        read(str(folder))
    with refused(CorpusError, '"dev"'):
        read(f"{folder}:dev")


def test_datasets_saved_to_disk_are_read(tmp_path, read):
    columns("en", "de").save_to_disk(tmp_path / "one")
    DatasetDict(dev=columns("en", "de"), test=columns("en", "de").select([0])).save_to_disk(tmp_path / "several")
    assert read(str(tmp_path / "one")) == PAIRS
    assert read(f"{tmp_path / 'several'}:dev") == PAIRS
    assert read(f"{tmp_path / 'several'}:test") == PAIRS[:1]
    with refused(CorpusError, "several splits"):
        read(str(tmp_path / "several"))
    with refused(CorpusError, "'train'"):
        read(f"{tmp_path / 'several'}:train")
    with refused(CorpusError, "no splits", "'train'"):
        read(f"{tmp_path / 'one'}:train")


def test_a_truncated_saved_dataset_is_named(tmp_path, read):
    columns("en", "de").save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-100])
    with refused(CorpusError, "saved"):
        read(str(tmp_path / "saved"))


def test_a_null_is_an_empty_text(tmp_path, write, read):
    Dataset.from_dict({"en": ["a", None], "de": ["b", "c"]}).to_parquet(tmp_path / "c.parquet")
    assert read(str(tmp_path / "c.parquet")) == [("a", "b"), ("", "c")]
    assert read(write("c.jsonl", '{"en": "a", "de": "b"}\n{"en": null, "de": "c"}\n')) == [("a", "b"), ("", "c")]


@pytest.mark.parametrize(
    ("header", "order"),
    [("id\tsource\ttarget", "1\t{0}\t{1}"), ("tgt\tsrc", "{1}\t{0}"), ("Source \tTarget", "{0}\t{1}")],
)
def test_tsv_header_that_names_both_sides_selects_the_columns(write, read, header, order):
    rows = [order.format(*pair) for pair in PAIRS]
    assert read(write("c.tsv", "\n".join([header, *rows]))) == PAIRS


def test_a_csv_cell_may_be_a_megabyte_long(write, read):
    assert read(write("c.csv", f"en,de\n{'a' * 1_000_000},b\n")) == [("a" * 1_000_000, "b")]


def test_a_pipe_is_read_to_score_but_refused_to_learn_from(tmp_path, write, read):
    other = write("b", "2\n")

    def written(name):
        """A pipe, as a shell makes one for `<(command)`; what is written to it can be read once."""
        os.mkfifo(tmp_path / name)
        threading.Thread(target=lambda: (tmp_path / name).write_text("1\n"), daemon=True).start()
        return str(tmp_path / name)

    assert read(written("a"), other) == [("1", "2")]
    os.mkfifo(tmp_path / "once")
    with refused(CorpusError, "once", "pipe"):
        open_corpus([str(tmp_path / "once"), other])


def test_blank_lines_hold_no_row_but_empty_cells_do(write, read):
    assert read(write("c.tsv", "a\tb\n\n\t\n")) == [("a", "b"), ("", "")]
    assert read(write("c.csv", "en,de\na,b\n\n,\n")) == [("a", "b"), ("", "")]
    assert read(write("c.jsonl", '{"en": "a", "de": "b"}\n\n')) == [("a", "b")]


def test_a_quoted_field_of_csv_may_hold_line_breaks(write, read):
    assert read(write("c.csv", 'en,de\r\n"one\ntwo","a ""b"""\r\n')) == [("one\ntwo", 'a "b"')]


@pytest.mark.parametrize(
    ("names", "contents", "named"),
    [
        (["a.en", "a.de"], ["1\n2\n3\n", "1\n"], "a.en 3 lines a.de 1"),
        (["a.en", "a.de"], ["1\n", "1\n2\n"], "a.en 1 lines a.de 2"),
        (["a.en", "a.de"], ["1\n", b"\xff\n"], "a.de line 1 UTF-8"),
        (["a.en", "a.de"], ["", ""], "no pairs a.en a.de"),
        (["a.en", "a.de.gz"], ["1\n", None], "a.de.gz"),
        (["a.tsv", "b.tsv"], ["1\t2\n", "1\t2\n"], "one table"),
        (["a.en", "a.de", "a.fr"], ["1\n"] * 3, "two 3"),
        ([], [], "no corpus"),
        (["a.txt"], ["1\n"], ".tsv .parquet plain text"),
        (["a.tsv"], [None], "a.tsv"),
        (["a.tsv"], [""], "a.tsv empty"),
        (["a.tsv"], ["1\t2\n3\n"], "a.tsv line 2 1 2"),
        (["a.tsv"], ["source\ttarget\n"], "no pairs a.tsv"),
        (["a.tsv"], ["source\ttarget\n4\n"], "line 2 1 2"),
        (["a.tsv"], ["source\ttarget\n1\t2\t3\n"], "line 2 3 2"),
        (["a.tsv"], ["1\t2\n3\t4\t5\n"], "line 2 3 2"),
        (["a.tsv"], ["1\t2\tCC-BY\n"], "a.tsv 3 source_column target_column"),
        (["a.tsv"], ["en\tde\n1\t2\n"], "line 1 'en' 'de'"),
        (["a.tsv"], ["source\ttarget\tsource\n1\t2\t3\n"], "2 'source'"),
        (["a.csv"], [""], "a.csv empty"),
        (["a.csv"], ["en,de,id\n1,2,3\n"], "'en' 'de' 'id'"),
        (["a.csv"], ["en,de\n1,2\nHello, world,Hallo\n"], "a.csv line 3 3 2"),
        (["a.csv"], ['en,de\n1,2\n"3,4\n5,6\n'], "a.csv line 3 CSV"),
        (["a.csv"], ["en,en\n1,2\n"], "2 'en'"),
        (["a.csv"], ["source,source\n1,2\n"], "2 columns 'source'"),
        (["a.csv"], ["id,source\n1,2\n"], "target"),
        (["a.csv"], [b"en,de\n1,2\n\xe4,3\n"], "a.csv line 3 UTF-8"),
        (["a.jsonl"], ['{"en": "1", "de": "2"}\n{"en": \n'], "a.jsonl line 2 JSON"),
        (["a.jsonl"], ["[" * 100_000], "a.jsonl line 1 JSON"),
        (["a.jsonl"], ['{"en": "1", "en": "2", "de": "3"}\n'], "line 1 JSON 'en'"),
        (["a.jsonl"], ['["1", "2"]\n'], "line 1 JSON"),
        (["a.jsonl"], ['{"en": "1", "de": "2"}\n{"en": "1"}\n'], "line 2 'de' 'en'"),
        (["a.jsonl"], ['{"en": "1", "de": 2}\n'], "line 1 'de' 2"),
        (["a.jsonl"], ['{"en": "1", "de": "\\ud800"}\n'], "line 1 'de' surrogate"),
        (["a.jsonl"], ['{"translation": {"en": "1"}}\n'], "'en'"),
        (["a.jsonl"], ['{"translation": {"a": "", "b": ""}}\n{"translation": 1}\n'], "line 2 'translation'"),
        (["a.parquet"], [b"PAR1 and no more"], "a.parquet"),
    ],
)
def test_bad_input_is_told_in_one_sentence(tmp_path, write, names, contents, named):
    for name, content in zip(names, contents, strict=True):
        if content is not None:
            write(name, content)
    with refused(CorpusError, *named.split()):
        read_corpus([str(tmp_path / name) for name in names], cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.tmp"))


@pytest.mark.parametrize(
    ("name", "content", "wanted", "named"),
    [
        ("a.csv", "en,de\n1,2\n", ("en", "fr"), "a.csv 'fr' 'en' 'de'"),
        ("a.tsv", "1\t2\n", ("en", "de"), "'en' '1' '2'"),
        ("a.csv", "en,de\n1,2\n", ("en", None), "both"),
        ("a.csv", "en,de,en\n1,2,3\n", ("en", "de"), "a.csv 2 'en'"),
        ("a.tsv", "de\ten\ten\n1\t2\t3\n", ("de", "en"), "a.tsv 2 'en'"),
        ("a.jsonl", '{"translation": {"en": "1", "de": "2"}}\n', ("en", "fr"), "'fr' 'en' 'de'"),
    ],
)
def test_a_wrong_column_is_answered_with_those_there_are(write, read, name, content, wanted, named):
    with refused(CorpusError, *named.split()):
        read(write(name, content), source_column=wanted[0], target_column=wanted[1])


def test_names_for_what_has_no_columns_are_refused(write, read):
    files = write("a.en", "1\n"), write("a.de", "2\n")
    for source in (files, ("cmudict:dev",)):
        with refused(CorpusError, "no named columns"):
            read(*source, source_column="en", target_column="de")


def test_columns_without_text_are_refused(tmp_path, read):
    Dataset.from_dict({"en": ["a"], "de": [1]}).to_parquet(tmp_path / "c.parquet")
    with refused(CorpusError, "'de'", "int64"):
        read(str(tmp_path / "c.parquet"))


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (None, "c.parquet empty"),
        (pa.table({}), "no pairs c.parquet"),
        (pa.table({"en": pa.array([], pa.string()), "de": []}), "no pairs c.parquet"),
        (pa.table([["1"], ["2"], ["3"]], names=["en", "de", "en"]), "c.parquet 2 'en'"),
    ],
)
def test_parquet_files_without_rows_or_with_a_name_twice_are_refused(tmp_path, read, table, named):
    path = tmp_path / "c.parquet"
    path.touch()
    if table is not None:
        pq.write_table(table, path)
    with refused(CorpusError, *named.split()):
        read(str(path))


def test_a_hub_that_does_not_answer_is_asked_once_and_named(unreachable_hub, read):
    with refused(CorpusError, "some/corpus", unreachable_hub):
        read("some/corpus")
    assert constants.HF_HUB_OFFLINE is False


def test_a_full_disk_is_told_with_its_place(read, tmp_path, monkeypatch):
    text = [f"number {number}" for number in range(9000)]
    pq.write_table(pa.table({"en": text, "de": text}), tmp_path / "a.parquet")
    with small_files(1 << 15), refused(CorpusError, "a.parquet", "datasets", "full"):
        read(str(tmp_path / "a.parquet"))
    # The library looks at the free space before it begins.
    monkeypatch.setattr("os.statvfs", lambda place: os.statvfs_result((1, 1, 1, *[0] * 6, 255)))
    with refused(CorpusError, "a.parquet", "datasets", "full"):
        read(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("source", ["./absent", "/absent/folder", "absent.parquet", "a b", "absent.tsv:train"])
def test_a_source_that_must_be_a_path_is_not_sought_on_the_hub(unreachable_hub, read, source):
    with refused(CorpusError, "does not exist") as caught:
        read(source)
    assert unreachable_hub not in str(caught.value)


def test_a_dataset_of_the_hub_is_asked_for_by_name_config_and_split(monkeypatch, read):
    asked = []

    def unreachable(**arguments):
        asked.append(arguments)
        raise ConnectionError("Couldn't reach it\nmore")

    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # Which alone can tell whether the Hub answers.
    monkeypatch.setenv("no_proxy", "")
    for source in ("some/corpus", "some/corpus:train", "some/corpus:de-en:train"):
        with refused(CorpusError, "some/corpus", "Couldn't reach it"):
            read(source)
    assert [arguments["name"] for arguments in asked] == [None, None, "de-en"]
    assert all(arguments.keys() == {"path", "name"} for arguments in asked)
    with refused(CorpusError, "NAME:CONFIG:SPLIT"):
        read("some/corpus:a:b:c")


def test_an_existing_path_wins_over_colons(tmp_path, write, read, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a:b.tsv", "1\t2\n")
    assert read("a:b.tsv") == [("1", "2")]
    with refused(CorpusError, "a:b.tsv", "'train'"):
        read("a:b.tsv:train")


def test_a_built_in_corpus_wins_over_a_directory_of_its_name(tmp_path, read, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cmudict").mkdir()
    assert len(read("cmudict:dev")) == 2_735


def test_pairs_are_read_once_and_again_only_if_a_file_changed(tmp_path, write, read):
    files = write("a.en", "1\n2\n"), write("a.de", "3\n4\n")
    assert read(*files) == [("1", "3"), ("2", "4")]
    before = os.stat(files[1])
    write("a.de", "3\n5\n")
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read(*files) == [("1", "3"), ("2", "5")]
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    assert read(*files) == [("1", "3"), ("2", "5")]
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")} != {}


def test_columns_are_kept_apart_on_disk(write, read):
    path = write("a.csv", "en,de\n1,2\n")
    assert read(path) == [("1", "2")]
    assert read(path, source_column="de", target_column="en") == [("2", "1")]
    assert read(path) == [("1", "2")]


def test_nothing_of_local_files_is_kept_outside_the_given_directory(tmp_path, write, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home)
    columns("en", "de").to_parquet(tmp_path / "c.parquet")
    for source in ([write("a.en", "1\n"), write("a.de", "2\n")], [str(tmp_path / "c.parquet")]):
        corpus = read_corpus(source, cache_dir=tmp_path / "cache")
        assert all(str(tmp_path / "cache") in file["filename"] for file in corpus.cache_files)
    assert not home.exists()


def test_without_a_directory_pairs_are_still_on_disk(write):
    corpus = read_corpus([write("a.en", "1\n"), write("a.de", "2\n")])
    assert corpus[0] == {"source": "1", "target": "2"}
    assert corpus.cache_files


@pytest.mark.parametrize(
    ("names", "languages"),
    [
        (("c.en", "c.de"), ("en", "de")),
        (("c.en.gz", "c.de.txt.gz"), ("en", "de")),
        (("c.pt_BR", "c.deu_Latn"), ("pt_BR", "deu_Latn")),
        (("c.src", "c.tgt"), (None, None)),
        (("dev.txt", "train.phon.gz"), (None, None)),
    ],
)
def test_languages_are_told_by_suffixes(names, languages):
    assert corpus_languages(names) == languages


def test_languages_are_told_by_columns(write):
    assert corpus_languages([write("a.csv", "en,de\n1,2\n")]) == ("en", "de")
    assert corpus_languages([write("a.tsv", "x\tfr\tit\n"), "source_column=fr", "target_column=it"]) == ("fr", "it")
    assert corpus_languages([write("a.jsonl", '{"translation": {"cs": "1", "uk": "2"}}\n')]) == ("cs", "uk")
    assert corpus_languages([write("b.tsv", "a\tb\n")]) == (None, None)
    assert corpus_languages([write("b.csv", "source,target\n1,2\n")]) == (None, None)
    assert corpus_languages(["cmudict:train"]) == ("en", None)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".tsv.gz"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60) | st.text('{}[]":,\t\n\r\\ab0ü', max_size=60).map(str.encode), whole=st.booleans())
def test_any_bytes_are_read_or_refused_with_a_reason(tmp_path, suffix, data, whole):
    path = tmp_path / f"fuzz{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") and whole else data)
    try:
        corpus = read_corpus([str(path)], cache_dir=tmp_path / "cache")
    except CorpusError as error:
        assert str(path) in str(error)
    else:
        assert len(corpus) > 0


def test_a_copy_that_was_cut_off_is_made_again(tmp_path):
    paths = [tmp_path / "a.en", tmp_path / "a.de"]
    for path in paths:
        path.write_text("one two\n" * 500)
    read_corpus(list(map(str, paths)), cache_dir=tmp_path / "cache")
    (copy,) = (tmp_path / "cache").glob("*.arrow")
    content = copy.read_bytes()
    copy.unlink()
    copy.write_bytes(content[: len(content) // 2])
    assert len(read_corpus(list(map(str, paths)), cache_dir=tmp_path / "cache")) == 500
