"""Each filter takes what it is for and nothing else, and what is left stays aligned."""

import gzip
import json
import random
import subprocess
import sys

import pytest

from vanilla_transformer.cli import main
from vanilla_transformer.data.text_lines import CorpusError

pytest.importorskip("ftfy", reason="ftfy is not installed.")

from refusals import refused

from vanilla_transformer.extras.cleaning.cleaning import FILTERS, Filters, clean_files

GOOD = [
    ("The cat sits on the warm stove.", "Die Katze sitzt auf dem warmen Ofen."),
    ("He said: “that’s fine”…", "Er sagte: „das ist schön“ …"),
    ("It costs 12,50 € at the café.", "Es kostet 12,50 € im Café."),
    ("No.", "Nein, danke sehr."),
    ("2016", "1.234"),
    ("A naïve façade \U0001f600", "Eine naïve Fassade \U0001f600"),
    ("a rare\u2028break", "line\u2029breaks of Unicode"),
    ("tab\there", "und\tda"),
    ("\u00df and \u1e9e", "Straße oder STRAẞE"),
]
BAD = {
    "encoding": [(b"caf\xe9", b"Kaffee"), (b"fine", b"sch\xc3"), ("un\ufffdreadable", "ja"), ("nul\x00", "ja")],
    "empty": [("", "etwas"), ("something", " \t\u00a0"), ("", "")],
    "mojibake": [("The bridge is nice", "Die BrÃ¼cke ist schÃ¶n"), ("itâ€™s", "es ist"), ("wait\x85", "warte")],
    "length": [("word " * 201, "Wort " * 150), ("x" * 2001, "y" * 1500)],
    "ratio": [("short", "Das hier ist viel zu lang für so wenig")],
    "script": [("Привет мир", "Hallo Welt"), ("Hello world", "你好，世界 ok")],
    "copy": [("Copy me as I am", "Copy me as I am."), ("Same Same", "same  same")],
    "duplicate": [GOOD[0], (f" {GOOD[0][0]}", GOOD[0][1].replace(" ", "  "))],
}


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def write(directory, pairs, ends=(b"\n", b"\r\n")):
    paths = [directory / "corpus.en", directory / "corpus.de"]
    for path, side, end in zip(paths, zip(*pairs, strict=True), ends, strict=True):
        path.write_bytes(b"".join(as_bytes(text) + end for text in side))
    return paths


@pytest.fixture
def outputs(tmp_path):
    return [tmp_path / "clean.en", tmp_path / "clean.de"]


LATIN = {"scripts": ("Latin", "Latin")}


def test_each_filter_takes_what_it_is_for_and_lines_stay_aligned(tmp_path, outputs):
    bad = [(name, pair) for name, pairs in BAD.items() for pair in pairs]
    mixed = [*((None, pair) for pair in GOOD), *bad]
    random.Random(0).shuffle(mixed)
    mixed = [(None, GOOD[0]), *(one for one in mixed if one != (None, GOOD[0]))]
    inputs = write(tmp_path, [pair for _, pair in mixed])
    before = [path.read_bytes() for path in inputs]
    report = clean_files(inputs, outputs, Filters(**LATIN, examples=100))
    assert [path.read_bytes() for path in inputs] == before
    assert {name: taken.count for name, taken in report.taken.items()} == {name: len(BAD[name]) for name in FILTERS}
    for name, taken in report.taken.items():
        where = sorted(example["line"] for example in taken.examples)
        assert where == [line for line, (kind, _) in enumerate(mixed, start=1) if kind == name]
    kept = [pair for kind, pair in mixed if kind is None]
    assert (report.read, report.kept) == (len(mixed), len(kept)) and set(kept) == set(GOOD)
    for path, side in zip(outputs, zip(*kept, strict=True), strict=True):
        assert path.read_bytes() == b"".join(as_bytes(text) + b"\n" for text in side)


@pytest.mark.parametrize("name", [name for name in FILTERS if name not in ("encoding", "empty")])
def test_a_filter_that_is_left_out_takes_nothing(name, tmp_path, outputs):
    inputs = write(tmp_path, [GOOD[0], *BAD[name]])
    report = clean_files(inputs, outputs, Filters(**LATIN, skip=(name,)))
    assert report.kept == report.read and name not in report.taken


def test_one_file_is_cleaned_without_what_compares_sides(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress("\ufeffeins\nzwei\n\neins\n".encode()))
    report = clean_files([path], [tmp_path / "clean.txt.gz"], Filters())
    assert gzip.decompress((tmp_path / "clean.txt.gz").read_bytes()) == b"eins\nzwei\n"
    assert (report.read, report.kept) == (4, 2) and not {"ratio", "copy"} & report.taken.keys()


def test_scripts_are_those_of_the_beginning(tmp_path, outputs):
    pairs = [(f"sentence {number}", f"предложение {number}") for number in range(8)]
    report = clean_files(write(tmp_path, [*pairs, ("слово", "слово два три")]), outputs, Filters())
    assert report.scripts == ["Latin", "Cyrillic"] and report.taken["script"].count == 1
    japanese = tmp_path / "text.ja"
    japanese.write_text("これは日本語のカタカナです\n" * 20 + "This is not\n")
    report = clean_files([japanese], [tmp_path / "clean.ja"], Filters(skip=("duplicate",)))
    assert report.scripts == ["Han+Hiragana+Katakana"] and (report.kept, report.taken["script"].count) == (20, 1)


def test_duplicates_are_found_across_buffers_and_the_first_stays(tmp_path):
    draw = random.Random(1)
    lines = [f"line number {draw.randrange(4000)} of many" for _ in range(12_000)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    clean_files([path], [tmp_path / "clean.txt"], Filters())
    assert (tmp_path / "clean.txt").read_text().splitlines() == list(dict.fromkeys(lines))


def test_examples_are_drawn_from_all_that_was_taken(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("same\n" * 1000)
    report = clean_files([path], [tmp_path / "clean.txt"], Filters(examples=5))
    lines = [example["line"] for example in report.taken["duplicate"].examples]
    assert report.taken["duplicate"].count == 999 and len(set(lines)) == 5 and max(lines) > 100


def test_files_of_different_lengths_are_refused_and_nothing_is_written(tmp_path, outputs):
    inputs = write(tmp_path, GOOD)
    with inputs[1].open("ab") as file:
        file.write(b"eine mehr\n")
    with refused(CorpusError, "corpus.en", "9 lines", "corpus.de"):
        clean_files(inputs, outputs, Filters())
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.en", "corpus.de"}


def run(*words):
    return main(["clean", *map(str, words)])


def test_the_command_prints_its_report(tmp_path, outputs, capsys):
    inputs = write(tmp_path, [GOOD[0], GOOD[0], BAD["copy"][0]])
    assert run(*inputs, "--output", *outputs) == 0
    found = capsys.readouterr().out
    assert found.startswith("1 of 3 lines kept.\n") and "line 3: Copy me as I am ||| Copy me as I am." in found
    for path in outputs:
        path.unlink()
    assert run(*inputs, "--output", *outputs, "--json", "--skip", "copy") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kept"] == 2 and report["taken"]["duplicate"]["examples"][0]["line"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["IN", "--output", "OUT"], "--output needs as many files as there are inputs: 2"),
        (["IN", "--output", "IN"], "must be different files"),
        (["IN", "--output", "OUT", "THERE"], "exists: delete it, or name another file with --output"),
        (["IN", "--output", "OUT", "OUT2", "--skip", "other"], "there is no filter other; there are encoding, empty"),
        (["IN", "--output", "OUT", "OUT2", "--skip", "empty"], "the filter empty cannot be left out"),
        (["IN", "--output", "OUT", "OUT2", "--scripts", "Latin"], "1 scripts are given for 2 files"),
        (["IN", "--output", "OUT", "OUT2", "--scripts", "Latin", "Klingon"], "there is no script Klingon; there are"),
        (["IN", "--output", "OUT", "OUT2", "--max-ratio", "0.5"], "--max-ratio must be at least 1, not 0.5"),
        (["IN", "--output", "OUT", "OUT2", "--min-words", "300"], "--min-words must be at most 200, not 300"),
        (["pairs.tsv", "--output", "OUT"], "pairs.tsv is a table: write each column to a text file"),
        (["none.txt", "--output", "OUT"], "none.txt does not exist"),
    ],
)
def test_clean_refuses_wrong_files_and_writes_nothing(words, message, tmp_path, outputs, capsys):
    inputs = write(tmp_path, GOOD)
    there = tmp_path / "there"
    there.write_text("mine")
    places = {"IN": inputs, "OUT": [outputs[0]], "OUT2": [outputs[1]], "THERE": [there]}
    assert run(*(path for word in words for path in places.get(word, [word]))) in (1, 2)
    assert message in capsys.readouterr().err
    assert not any(path.exists() for path in outputs) and there.read_text() == "mine"


def test_help_and_refusals_need_no_ftfy(tmp_path):
    blocked = "import sys; sys.modules['ftfy'] = None; from vanilla_transformer.cli import main; sys.exit(main())"
    (tmp_path / "text.txt").write_text("one\n")
    words = ["clean", str(tmp_path / "text.txt"), "--output", str(tmp_path / "clean.txt")]
    done = subprocess.run([sys.executable, "-c", blocked, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "ftfy is not installed: run `pip install 'vanilla-transformer[clean]'`" in done.stderr
