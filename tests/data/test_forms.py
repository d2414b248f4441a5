"""Corpora of other columns than pairs: one text, a text with its label, words with their tags."""

import gzip

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from refusals import refused

from vanilla_transformer.data.columns import PAIRS, TEXTS
from vanilla_transformer.data.conll import TAGGED_SENTENCES
from vanilla_transformer.data.corpus import open_corpus, read_corpus
from vanilla_transformer.data.sources import parse_corpus
from vanilla_transformer.errors import CorpusError
from vanilla_transformer.tasks.text_classification import LABELLED_TEXTS

LABELLED = [("a film, fine", "", "good"), ("dull\u2028even", "", "bad")]


@pytest.fixture
def write(tmp_path):
    def call(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return call


def rows(words, form, **settings):
    """The rows of a corpus, which are the same as a stream and as a dataset."""
    corpus = parse_corpus([words] if isinstance(words, str) else words)
    stream = open_corpus(corpus, form=form, **settings)
    found = [tuple(row.values()) for table in stream.tables() for row in table.to_pylist()]
    assert [tuple(row.values()) for row in read_corpus(corpus, form=form, **settings)] == found
    return found


def test_plain_text_is_a_text_a_line(write, tmp_path):
    assert rows(write("a.txt", "one\n\ntwo\tthree\n"), TEXTS) == [("one",), ("",), ("two\tthree",)]
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"one\n"))
    assert rows(str(tmp_path / "b.txt.gz"), TEXTS) == [("one",)]


def test_column_is_selected_by_name_by_number_or_as_the_only_one(write, tmp_path):
    assert rows([write("a.tsv", "x\ty\n"), "text_column=2"], TEXTS) == [("y",)]
    assert rows(write("b.csv", "id,Text\n1,x\n"), TEXTS) == [("x",)]
    assert rows(write("c.csv", "anything\nx\n"), TEXTS) == [("x",)]
    assert rows(write("d.jsonl", '{"id": 1, "sentence": "x"}\n'), TEXTS) == [("x",)]
    Dataset.from_dict({"text": ["x", None], "id": [1, 2]}).to_parquet(tmp_path / "e.parquet")
    assert rows(str(tmp_path / "e.parquet"), TEXTS, cache_dir=tmp_path / "cache") == [("x",), ("",)]


def test_labelled_texts_are_found_in_every_kind_of_table(write, tmp_path):
    tables = [
        write("a.tsv", "label\ttext\ngood\ta film, fine\nbad\tdull\u2028even\n"),
        write("b.csv", 'sentence,label\n"a film, fine",good\ndull\u2028even,bad\n'),
        write("c.jsonl", '{"text": "a film, fine", "label": "good"}\n{"text": "dull\\u2028even", "label": "bad"}\n'),
        [write("d.tsv", "good\ta film, fine\nbad\tdull\u2028even\n"), "text_column=2", "label_column=1"],
    ]
    for table in tables:
        assert rows(table, LABELLED_TEXTS) == LABELLED
    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    columns = {"text": [text for text, _, _ in LABELLED], "label": [1, 0]}
    Dataset.from_dict(columns, features=kinds).save_to_disk(tmp_path / "saved")
    assert rows(str(tmp_path / "saved"), LABELLED_TEXTS, cache_dir=tmp_path / "cache") == LABELLED


def test_numbers_are_labels_and_a_second_text_may_be_there(write):
    table = write("a.jsonl", '{"premise": "p", "hypothesis": "h", "label": 2}\n')
    assert rows(table, LABELLED_TEXTS) == [("p", "h", "2")]
    table = write("b.csv", "first,second,label\np,h,0.5\n")
    names = ["text_column=first", "text_pair_column=second"]
    assert rows([table, *names], LABELLED_TEXTS) == [("p", "h", "0.5")]


def test_words_and_tags_are_read_from_conll_columns(write):
    expected = [("New\u00a0York\tis\tbig", "B\tO\tO"), ("#\tok", "O\tO")]
    assert rows(write("a.conll", "New\u00a0York\tB\nis\tO\nbig\tO\n\n\n#\tO\nok\tO\n"), TAGGED_SENTENCES) == expected
    conll2003 = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n"
    assert rows(write("b.txt", conll2003), TAGGED_SENTENCES) == [("EU\trejects", "B-ORG\tO")]
    conllu = "# text = vámonos\n1-2\tvámonos\t_\t_\n1\tvamos\tir\tVERB\n2\tnos\tyo\tPRON\n2.1\tx\tx\tX\n"
    columns = ["text_column=2", "label_column=4"]
    assert rows([write("c.conllu", conllu), *columns], TAGGED_SENTENCES) == [("vamos\tnos", "VERB\tPRON")]


@pytest.mark.parametrize(
    ("name", "text", "columns", "form", "said"),
    [
        ("a.conll", "a\tX\n\nb\n", [], TAGGED_SENTENCES, "a.conll line 3 1 2"),
        ("a.conll", "a\tX\nb\t\n", [], TAGGED_SENTENCES, "a.conll line 2 tag"),
        ("a.conll", "a\nb\n", [], TAGGED_SENTENCES, "line 1 tags"),
        ("a.conll", "a\tX\n", ["label_column=3"], TAGGED_SENTENCES, "column 3 2"),
        ("a.conll", "a\tX\n", ["label_column=pos"], TAGGED_SENTENCES, "numbers"),
        ("a.csv", "a,b\n1,2\n", [], TAGGED_SENTENCES, "CoNLL a.csv"),
        ("a.csv", "a,b\n1,2\n", [], LABELLED_TEXTS, "text_column"),
        ("a.csv", "text,b\n1,2\n", ["label_column=c"], LABELLED_TEXTS, "'c' 'text' 'b'"),
        ("a.tsv", "x\ty\n", [], LABELLED_TEXTS, "from 1 text_column label_column"),
        ("a.tsv", "x\ty\n", ["text_column=2"], LABELLED_TEXTS, "from 1 label_column"),
        ("a.tsv", "x\ty\n", ["text_column=3", "label_column=1"], LABELLED_TEXTS, "column 3 2"),
        ("a.tsv", "text\tlabel\nx\n", [], LABELLED_TEXTS, "a.tsv line 2 1 2"),
        ("a.jsonl", '{"text": "x", "label": [1]}\n', [], LABELLED_TEXTS, "'label' [1]"),
        ("a.txt", "x\n", ["text_column=1"], TEXTS, "no named columns"),
        ("a.txt", "x\n", ["source_column=1"], TEXTS, "source_column text_column"),
        ("a.tsv", "x\ty\n", ["label_column=1"], PAIRS, "label_column source_column target_column"),
    ],
)
def test_unreadable_rows_are_named_with_their_place(write, name, text, columns, form, said):
    with refused(CorpusError, *said.split()):
        rows([write(name, text), *columns], form)


def test_two_files_are_no_one_column(write):
    with refused(CorpusError, "2 sources"):
        rows([write("a.txt", "x\n"), write("b.txt", "y\n")], TEXTS)
    with refused(CorpusError, "gone.txt"):
        rows("gone.txt", TEXTS)


def test_a_row_is_found_again_by_its_number(write):
    table = write("a.tsv", "text\tlabel\n\nx\tA\ny\tB\n")
    assert open_corpus([table], form=LABELLED_TEXTS).where(1) == f"{table}, line 4"
    sentences = write("a.conll", "a\tX\nb\tY\n\nc\tZ\n")
    assert open_corpus([sentences], form=TAGGED_SENTENCES).where(1) == f"{sentences}, line 4"
    assert open_corpus(["cmudict:dev"]).where(6) == "cmudict, row 7"
