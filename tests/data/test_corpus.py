"""Text comes into datasets exactly as it stands in files, and what is at fault is named with its file and line."""

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
from datasets import ClassLabel, Dataset, DatasetDict, Features, Translation, Value
from hypothesis import HealthCheck, given, settings, strategies as st
from refusals import refused

from vanilla_transformer.data.corpus import corpus_languages, read_corpus
from vanilla_transformer.data.sources import PAIRS, TAGGED_SENTENCES, TEXTS, CorpusSpec, refuse_pipes
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.tasks.text_classification import LABELLED_TEXTS

# Each row is a trap of some reader: quotes, words for missing values, dates, separators, line breaks that are none.
ROWS = [
    ("A dog runs.", "Ein Hund läuft."),
    ('"Go," he said, "now"', 'a "b'),
    ("null", "NA"),
    ("2024-01-31", "1e5"),
    ("  spaces around ", "one\u2028two\x85three\fend"),
    ("12", "007"),
    ("", "a side may be empty"),
    ("same source", "first"),
    ("same source", "second 🙂"),
]
# What a line of two line-aligned files, or a cell of TSV, may hold.
cells = st.text(st.characters(codec="utf-8", exclude_characters="\n\t\r\ufeff"), max_size=6)
pairs = st.lists(st.tuples(cells, cells), min_size=1, max_size=6)
SLOW_FIXTURE = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def write(tmp_path):
    def call(name, content):
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(tmp_path / name)

    return call


@pytest.fixture
def rows(tmp_path):
    """Reads the rows of a corpus in a form."""

    def call(*words, form=PAIRS):
        corpus = read_corpus(list(map(str, words)), form=form, cache_dir=tmp_path / "cache")
        assert set(corpus.features) - {"line"} == set(form.names)
        return list(zip(*(corpus[name] for name in form.names), strict=True))

    return call


def tsv(rows, header=""):
    return header + "".join("\t".join(row) + "\n" for row in rows)


def comma_separated(rows, *names):
    text = io.StringIO()
    csv.writer(text).writerows([names, *rows])
    return text.getvalue()


def json_lines(rows, record):
    return "".join(json.dumps(record(*row)) + "\n" for row in rows)


def table(rows):
    return Dataset.from_dict({"source": [row[0] for row in rows], "target": [row[1] for row in rows]})


def translations(rows, *languages):
    records = [dict(zip(languages, row, strict=True)) for row in rows]
    return Dataset.from_dict({"translation": records}, features=Features({"translation": Translation(languages)}))


@SLOW_FIXTURE
@given(pairs=pairs, ends=st.sampled_from(["\n", "\r\n"]), suffix=st.sampled_from(["", ".gz"]))
def test_any_text_comes_back_from_every_kind_of_file(write, rows, tmp_path, pairs, ends, suffix):
    pairs = [*pairs, *ROWS]
    sides = [write(f"a.{side}{suffix}", "".join(row[side] + ends for row in pairs)) for side in (0, 1)]
    assert rows(*sides) == pairs
    assert rows(write(f"b.tsv{suffix}", tsv(pairs, "source\ttarget\n"))) == pairs
    assert rows(write(f"c.csv{suffix}", comma_separated(pairs, "en", "de"))) == pairs
    assert (
        rows(write(f"d.jsonl{suffix}", json_lines(pairs, lambda s, t: {"de": t, "translation": {"s": s, "t": t}})))
        == pairs
    )
    table(pairs).to_parquet(tmp_path / "e.parquet")
    assert rows(tmp_path / "e.parquet") == pairs
    named = ["source_column=de", "target_column=en"]
    assert rows(tmp_path / f"c.csv{suffix}", *named) == [row[::-1] for row in pairs]


def test_columns_are_found_by_their_names_in_any_order_and_case(write, rows, tmp_path):
    turned = [row[::-1] for row in ROWS]
    assert rows(write("a.tsv", tsv(turned, "Target\tSRC \n"))) == ROWS
    assert rows(write("b.jsonl", json_lines(ROWS, lambda s, t: {"id": 1, "target": t, "source": s}))) == ROWS
    assert rows(write("c.tsv", tsv([("1", *row) for row in turned])), "source_column=3", "target_column=2") == ROWS
    translations(turned, "de", "en").to_parquet(tmp_path / "e.parquet")
    assert rows(tmp_path / "e.parquet") == turned
    assert rows(tmp_path / "e.parquet", "source_column=en", "target_column=de") == ROWS


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_kind_of_string_in_parquet_is_text_and_a_null_is_empty(tmp_path, rows, write, kind):
    pq.write_table(pa.table({"en": pa.array(["a", None], kind), "de": ["b", "c"]}), tmp_path / "c.parquet")
    assert rows(tmp_path / "c.parquet") == [("a", "b"), ("", "c")]
    assert rows(write("c.jsonl", '{"en": "a", "de": "b"}\n{"en": null, "de": "c"}\n')) == [("a", "b"), ("", "c")]
    pairs = '{"translation": {"en": "a", "de": "b"}}\n{"translation": null}\n'
    assert rows(write("t.jsonl", pairs)) == [("a", "b"), ("", "")]


def test_a_directory_has_configurations_splits_and_shards(tmp_path, rows):
    folder = tmp_path / "folder"
    folder.mkdir()
    words = [("Null", "null"), ("n/a", "NA"), ("", "nan")]
    card = "---\nconfigs:\n- config_name: a\n  data_files:\n  - {split: train, path: 't-*.jsonl'}\n"
    card += "  - {split: dev, path: d.jsonl}\n- config_name: broken\n  data_files: broken.jsonl\n---\n"
    (folder / "README.md").write_text(card)
    for name, some in {"t-0": words[:1], "t-1": words[1:], "d": words[:1]}.items():
        record = lambda s, t: {"id": 1, "translation": {"en": s, "de": t}}  # noqa: E731
        (folder / f"{name}.jsonl").write_text(json_lines(some, record))
    (folder / "broken.jsonl").write_text('{"en": "a", "de": "b"}\nno JSON\n')
    assert rows(f"{folder}:a:train") == words and rows(f"{folder}:a:dev") == words[:1]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "train.csv").write_text(comma_separated(words, "en", "de"))
    assert rows(tmp_path / "tables") == words
    for name in (folder, f"{folder}:a:test", f"{folder}:broken:train"):
        with refused(CorpusError, "folder"):
            rows(name)


def test_datasets_saved_to_disk_are_read_where_they_lie(tmp_path, rows):
    table(ROWS).save_to_disk(tmp_path / "one")
    DatasetDict(dev=table(ROWS), test=table(ROWS[:1])).save_to_disk(tmp_path / "several")
    before = sorted(tmp_path.rglob("*"))
    assert rows(tmp_path / "one") == rows(f"{tmp_path / 'several'}:dev") == ROWS
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and path.is_file()] == []
    for name, named in ((tmp_path / "several", "splits"), (f"{tmp_path / 'one'}:train", "train")):
        with refused(CorpusError, named):
            rows(name)
    (file,) = (tmp_path / "one").glob("*.arrow")
    file.write_bytes(file.read_bytes()[:-100])
    with refused(CorpusError, "one"):
        rows(tmp_path / "one")


def test_a_text_alone_is_a_line_or_the_only_or_named_column(write, rows):
    assert rows(write("a.txt", "one\n\ntwo\tthree\n"), form=TEXTS) == [("one",), ("",), ("two\tthree",)]
    for table in (write("b.tsv", "y\tx\n"), write("c.csv", "id,Text\n1,x\n"), write("d.csv", "any\nx\n")):
        assert rows(table, *["text_column=2"] * table.endswith("b.tsv"), form=TEXTS) == [("x",)]


def test_labels_are_names_numbers_or_classes_and_a_second_text_may_be_there(write, rows, tmp_path):
    labelled = [("a film, fine", "", "good"), ("dull\u2028even", "", "bad")]
    assert rows(write("a.tsv", tsv([row[::2] for row in labelled], "text\tlabel\n")), form=LABELLED_TEXTS) == labelled
    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    columns = {"text": ["a film, fine", "dull\u2028even", "?"], "label": [1, 0, -1]}
    Dataset.from_dict(columns, features=kinds).save_to_disk(tmp_path / "saved")
    assert rows(tmp_path / "saved", form=LABELLED_TEXTS) == [*labelled, ("?", "", "")]
    pair = write("b.jsonl", '{"premise": "p", "hypothesis": "h", "label": 2}\n')
    assert rows(pair, form=LABELLED_TEXTS) == [("p", "h", "2")]


def test_words_and_tags_are_read_from_conll_columns(write, rows):
    expected = [("New\u00a0York\tis\t\u3000", "B\tO\tO"), ("#\tok", "O\tO")]
    for between in "\t ":
        lines = "New\u00a0York\tB\nis\tO\n\u3000\tO\n\n\n#\tO\nok\tO\n".replace("\t", between)
        assert rows(write("a.conll", lines), form=TAGGED_SENTENCES) == expected
    conll2003 = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n"
    assert rows(write("b.txt", conll2003), form=TAGGED_SENTENCES) == [("EU\trejects", "B-ORG\tO")]
    conllu = "# text = vámonos\n1-2\tvámonos\t_\t_\n1\tvamos\tir\tVERB\n2\tnos\tyo\tPRON\n2.1\tx\tx\tX\n"
    columns = ["text_column=2", "label_column=4"]
    assert rows(write("c.conllu", conllu), *columns, form=TAGGED_SENTENCES) == [("vamos\tnos", "VERB\tPRON")]


def test_words_and_parts_of_speech_are_read_from_conllu_files(write, rows):
    lines = ["# text = He pays.", "1\tHe\the\tPRON\tPRP\t_", "2-3\tpays\t_\t_\t_\t_", "2\tpay\tpay\tVERB\tVBZ\tNo"]
    file = write("a.conllu", "\n".join(lines) + "\n")
    assert rows(file, form=TAGGED_SENTENCES) == [("He\tpay", "PRON\tVERB")]
    assert rows(file, "label_column=5", form=TAGGED_SENTENCES) == [("He\tpay", "PRP\tVBZ")]


@SLOW_FIXTURE
@given(
    sentences=st.lists(
        st.lists(st.tuples(st.sampled_from("#ab-"), st.sampled_from("OX")), min_size=1, max_size=4), min_size=1
    ),
    between=st.sampled_from([" ", "\t"]),
    comment=st.sampled_from(["", "# a comment of several words\n"]),
)
def test_no_word_of_conll_columns_is_lost_not_even_a_hash(write, rows, sentences, between, comment):
    sentences = [
        [("a", "O")],
        *sentences,
    ]  # What the columns are must be seen before a word that begins like a comment.
    text = "\n".join(comment + "".join(between.join(word) + "\n" for word in sentence) for sentence in sentences)
    expected = [tuple("\t".join(column) for column in zip(*sentence, strict=True)) for sentence in sentences]
    assert rows(write("a.conll", text), form=TAGGED_SENTENCES) == expected


POINTER = "version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    ("words", "contents", "named"),
    [
        ("a.en a.de", ["1\n2\n3\n", "1\n"], "a.en a.de line 1"),
        ("a.en a.de", ["", ""], "a.en a.de"),
        ("a.en a.de.gz", ["1\n"], "a.de.gz"),
        ("a.tsv b.tsv", ["1\t2\n", "1\t2\n"], "a.tsv b.tsv"),
        ("a.en a.de a.fr", ["1\n"] * 3, "a.fr"),
        ("cmudict:valid", [], "train dev test"),
        ("a.txt", ["1\n"], "a.txt"),
        ("a.tsv", ["1\t2\n3\n"], "a.tsv line 2"),
        ("a.tsv", ["source\ttarget\n"], "a.tsv"),
        ("a.tsv", ["1\t2\tCC-BY\n"], "a.tsv source_column"),
        ("a.tsv", ["en\tde\n1\t2\n"], "a.tsv line 1 'en' 'de'"),
        ("a.tsv", ["German\tEnglish\n1\t2\n"], "a.tsv line 1 'German' 'English'"),
        ("a.tsv", ["1\t2\n3\n4\t5\n6\n7\t8\t9\n"], "a.tsv, line 2: 1 columns where 2 needed. 4, 5 (2"),
        ("a.csv", ["id,translation\n1,2\n"], "a.csv source 'id' 'translation'"),
        ("a.csv", [",en\n0,2\n"], "a.csv source '' 'en'"),
        ("a.csv", ["text,label\n1,2\n"], "a.csv source 'text' 'label'"),
        ("a.csv", ["source;target\n1;2\n"], "a.csv semicolons"),
        ("a.en a.de", [POINTER, POINTER], "a.en git lfs pull"),
        ("a.en.sgm a.de.sgm", ['<srcset setid="x">\n<seg>1</seg>\n'] * 2, "a.en.sgm markup"),
        ("a.parquet", [pa.table({"en": ["a"], "de": ["b"]}).slice(1)], "a.parquet no rows"),
        ("a.tsv source_column=en target_column=de", ["1\t2\n"], "a.tsv 'en' '1' '2'"),
        ("a.csv", ["en,de\n1,2\nHello, world,Hallo\n"], "a.csv line 3"),
        ("a.csv", ['en,de\n1,2\n"3,4\n5,6\n'], "a.csv line 3"),
        ("a.csv", ["en,en\n1,2\n"], "a.csv 'en'"),
        ("a.csv", ["id,source\n1,2\n"], "a.csv target"),
        ("a.csv", [b"en,de\n1,2\n\xe4,3\n"], "a.csv line 3"),
        ("a.csv source_column=en target_column=fr", ["en,de\n1,2\n"], "a.csv 'fr' 'en' 'de'"),
        ("a.jsonl", ['{"en": "1", "de": "2"}\n{"en": \n'], "a.jsonl line 2"),
        ("a.jsonl", ["[" * 100_000], "a.jsonl line 1"),
        ("a.jsonl", ['{"en": "1", "de": "2"}\n{"en": "1"}\n'], "a.jsonl line 2 'de'"),
        ("a.jsonl", ['{"en": "1", "de": 2}\n'], "a.jsonl line 1 'de' 2"),
        ("a.jsonl", ['{"en": "1", "de": "\\ud800"}\n'], "a.jsonl line 1 'de'"),
        ("a.jsonl", ['{"translation": {"a": "", "b": ""}}\n{"translation": 1}\n'], "a.jsonl line 2"),
        ("a.parquet", [b"PAR1 and no more"], "a.parquet"),
        ("a.parquet", [POINTER], "a.parquet git lfs pull"),
        ("a.parquet", [pa.table({"en": ["a"], "de": [1]})], "'de' int64"),
    ],
)
def test_bad_input_is_named_with_its_file_and_line(tmp_path, write, rows, monkeypatch, words, contents, named):
    monkeypatch.chdir(tmp_path)
    for name, content in zip(words.split(), contents, strict=False):
        pq.write_table(content, name) if isinstance(content, pa.Table) else write(name, content)
    with refused((CorpusError, FileNotFoundError), *named.split()):
        rows(*words.split())


@pytest.mark.parametrize(
    ("name", "text", "columns", "form", "named"),
    [
        ("a.conll", "a\tX\n\nb\n", [], TAGGED_SENTENCES, "a.conll line 3"),
        ("a.conll", "a X\n# a comment inside\n", [], TAGGED_SENTENCES, "a.conll line 2"),
        ("a.conll", "a\tX\nb\tADJ a\n", [], TAGGED_SENTENCES, "a.conll line 2 'ADJ"),
        ("a.conll", "\u3000\tX\n", [], TAGGED_SENTENCES, "a.conll line 1"),
        ("a.conll", "a\nb\n", [], TAGGED_SENTENCES, "a.conll line 1"),
        ("a.conll", "a\tX\n", ["label_column=3"], TAGGED_SENTENCES, "column 3"),
        ("a.csv", "a,b\n1,2\n", [], TAGGED_SENTENCES, "a.csv CoNLL .csv"),
        ("a.jsonl", '{"words": ["a"], "tags": ["X"]}\n\n', [], TAGGED_SENTENCES, "a.jsonl CoNLL .jsonl"),
        ("a.csv", "id;text\n1;two\n", [], TEXTS, "a.csv semicolons"),
        ("a.csv", "label\n1\n", [], TEXTS, "a.csv text_column 'label'"),
        ("a.txt", f"{POINTER}oid sha256:12\nsize 3\n", [], TEXTS, "a.txt git lfs pull"),
        ("a.conll", f"{POINTER}oid sha256:12\nsize 3\n", [], TAGGED_SENTENCES, "a.conll git lfs pull"),
        ("a.txt", "<?xml version='1.0'?>\n<tmx>\n", [], TEXTS, "a.txt markup"),
        ("a.txt", "one\rtwo\r", [], TEXTS, "a.txt \\r"),
        ("a.csv", "a,b\n1,2\n", [], LABELLED_TEXTS, "text_column"),
        ("a.tsv", "x\ty\n", ["text_column=3", "label_column=1"], LABELLED_TEXTS, "a.tsv '3'"),
        ("a.jsonl", '{"text": "x", "label": [1]}\n', [], LABELLED_TEXTS, "a.jsonl line 1 'label'"),
        ("a.ndjson.gz", "{}\n", [], TEXTS, "a.ndjson.gz text_column"),
        ("a.txt", "x\n", ["source_column=1"], TEXTS, "source_column text_column"),
    ],
)
def test_rows_of_other_forms_are_named_with_their_place(write, rows, name, text, columns, form, named):
    with refused(CorpusError, *named.split()):
        rows(write(name, text), *columns, form=form)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".tsv.gz", ".conll"])
@SLOW_FIXTURE
@given(
    data=st.binary(max_size=60) | st.text('{}[]":,\t\n\r\\ab0# ü', max_size=60).map(str.encode), whole=st.booleans()
)
def test_any_bytes_are_read_or_refused_with_a_reason(tmp_path, suffix, data, whole):
    path, form = tmp_path / f"fuzz{suffix}", TAGGED_SENTENCES if suffix == ".conll" else PAIRS
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") and whole else data)
    try:
        corpus = read_corpus([str(path)], form=form, cache_dir=tmp_path / "cache")
    except CorpusError as error:
        assert str(path) in str(error)
    else:
        assert len(corpus) > 0


def test_a_pipe_is_read_to_score_but_refused_to_learn_from(tmp_path, write, rows):
    os.mkfifo(tmp_path / "pipe")
    with refused(CorpusError, "pipe"):
        refuse_pipes([CorpusSpec((str(tmp_path / "pipe"), "b"))])
    for text in ("1\n", "2\n"):
        threading.Thread(target=lambda text=text: (tmp_path / "pipe").write_text(text), daemon=True).start()
        assert rows(tmp_path / "pipe", write("b", "3\n")) == [(text.strip(), "3")]


def test_text_is_read_again_only_if_a_file_or_a_choice_of_columns_changed(tmp_path, write, rows):
    def kept():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}

    path = write("a.csv", "en,de\n1,2\n")
    assert rows(path) == [("1", "2")] and rows(path, "source_column=de", "target_column=en") == [("2", "1")]
    before, status = kept(), os.stat(path)
    assert rows(path) == [("1", "2")] and kept() == before
    write("a.csv", "en,de\n1,3\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert rows(path) == [("1", "3")] and rows(path, "source_column=de", "target_column=en") == [("3", "1")]
    table([("1", "2")]).to_parquet(tmp_path / "b.parquet")
    assert rows(tmp_path / "b.parquet") == [("1", "2")]
    table([("1", "3")]).to_parquet(tmp_path / "b.parquet")
    os.utime(tmp_path / "b.parquet", ns=(0, 10**18))
    assert rows(tmp_path / "b.parquet") == [("1", "3")]


def test_nothing_of_local_files_is_kept_outside_the_given_directory(tmp_path, write, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "home")
    table(ROWS).to_parquet(tmp_path / "c.parquet")
    for source in ([write("a.en", "1\n"), write("a.de", "2\n")], [str(tmp_path / "c.parquet")]):
        corpus = read_corpus(source, cache_dir=tmp_path / "cache")
        assert all(str(tmp_path / "cache") in file["filename"] for file in corpus.cache_files)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "source", ["./absent", "/absent/folder", "absent.parquet", "a b", "absent.tsv:train", "s3://b/m"]
)
def test_a_source_that_must_be_a_path_is_not_sought_on_the_hub(unreachable_hub, rows, source):
    with refused(CorpusError, source.split(":")[0]) as caught:
        rows(source)
    assert unreachable_hub not in str(caught.value)


def test_a_dataset_of_the_hub_is_asked_for_by_name_config_and_split(monkeypatch, rows):
    asked = []

    def unreachable(**arguments):
        asked.append(arguments)
        raise ConnectionError("Couldn't reach it\nmore")

    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    for source in ("some/corpus", "some/corpus:train", "some/corpus:de-en:train"):
        with refused(CorpusError, "some/corpus"):
            rows(source)
    assert asked == [{"path": "some/corpus", "name": name} for name in (None, None, "de-en")]


def test_an_existing_path_wins_over_colons_and_patterns(tmp_path, write, rows, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a:b.tsv", "1\t2\n")
    assert rows("a:b.tsv") == [("1", "2")]
    with refused(CorpusError, "a:b.tsv:train"):
        rows("a:b.tsv:train")
    (tmp_path / "s[ab]").mkdir()
    for name in ("d1.parquet", "d[1].parquet", "d?.parquet", "s[ab]/a.parquet"):
        table([(name, name)]).to_parquet(tmp_path / name)
        assert rows(name) == [(name, name)]
    with refused(CorpusError, "s[ab]", "rename"):
        rows("s[ab]")


@pytest.mark.parametrize(
    ("words", "languages"),
    [
        (["c.en", "c.de"], ("en", "de")),
        (["c.en.gz", "c.de.txt.gz"], ("en", "de")),
        (["c.pt_BR", "c.deu_Latn"], ("pt_BR", "deu_Latn")),
        (["a.csv"], ("en", "de")),
        (["a.csv", "source_column=de", "target_column=en"], ("de", "en")),
        (["a.jsonl"], ("cs", "uk")),
        (["a.tsv"], (None, None)),
    ],
)
def test_languages_are_told_by_suffixes_and_columns(tmp_path, write, monkeypatch, words, languages):
    monkeypatch.chdir(tmp_path)
    write("a.csv", "en,de\n1,2\n")
    write("a.jsonl", '{"translation": {"cs": "1", "uk": "2"}}\n')
    write("a.tsv", "a\tb\n")
    for name in ("c.en", "c.de", "c.en.gz", "c.de.txt.gz", "c.pt_BR", "c.deu_Latn"):
        write(name, "1\n")
    assert corpus_languages(read_corpus(words)) == languages
