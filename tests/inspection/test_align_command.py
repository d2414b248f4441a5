"""`vanilla-transformer align`, and `translate --alignment`."""

import json
import shutil

import pytest

from vanilla_transformer.cli import main
from vanilla_transformer.inspection import AlignmentHeads, alignments, save_alignment_heads

SETTINGS = ["--max-length-beyond-source", "1", "--precision", "float32", "--device", "cpu"]
HEADS = AlignmentHeads(((2, 1), (3, 4)), "output")


@pytest.fixture
def here(tmp_path, monkeypatch, model_directory):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_directory, "model")
    (tmp_path / "in.en").write_text("A dog runs.\n\nTwo men wait for the bus.\n", encoding="utf-8")
    (tmp_path / "in.de").write_text("Ein Hund läuft.\n\nZwei Männer warten.\n", encoding="utf-8")
    return tmp_path


def out(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def test_pairs_are_aligned_line_by_line(here, capsys, model, tokenizer):
    save_alignment_heads("model", model, HEADS)
    lines = out(capsys, "align", "model", "in.en", "in.de")
    texts = [(here / name).read_text(encoding="utf-8").splitlines()[::2] for name in ("in.en", "in.de")]
    expected = alignments(model, tokenizer, *texts, heads=HEADS)
    assert lines == [expected[0].pharaoh(), "", expected[1].pharaoh()]


def test_heads_are_chosen_once_and_kept_with_the_model(here, capsys):
    assert main(["align", "model", "in.en", "in.de", "--choose-heads"]) == 0
    printed = capsys.readouterr()
    assert "on 2 pairs; kept in model/generation_config.json." in printed.err
    kept = json.loads((here / "model" / "generation_config.json").read_text())
    step, *heads = printed.out.split()
    assert kept["alignment_step"] == step
    assert [f"{layer + 1}:{head + 1}" for layer, head in kept["alignment_heads"]] == heads
    assert out(capsys, "align", "model", "in.en", "in.de")[1] == ""


def test_translations_are_the_same_with_their_alignments_after_them(here, capsys, model):
    save_alignment_heads("model", model, HEADS)
    plain = out(capsys, "translate", "model", "in.en", *SETTINGS)
    aligned = out(capsys, "translate", "model", "in.en", *SETTINGS, "--alignment")
    assert [line.rsplit(" ||| ", 1)[0] for line in aligned] == plain and aligned[1] == " ||| "
    for line, source, target in zip(aligned, (here / "in.en").read_text().splitlines(), plain, strict=True):
        links = [tuple(map(int, entry.split("-"))) for entry in line.rsplit(" ||| ", 1)[1].split()]
        assert all(i < len(source.split()) and j < len(target.split()) for i, j in links)
        assert {j for _, j in links} == set(range(len(target.split())))
    best = out(capsys, "translate", "model", "in.en", *SETTINGS, "--alignment", "--nbest", "2")
    assert [line.split(" ||| ")[0] for line in best] == ["0", "0", "1", "1", "2", "2"]
    for line, expected in zip(best[::2], aligned, strict=True):
        assert line.split(" ||| ", 1)[1].rsplit(" ||| ", 1)[0] == expected
