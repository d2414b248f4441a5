"""The experiment on alignments."""

import re

from scripts.experiments.alignment import error_rate, main, read_links
from tests.extras.inspection.conftest import model, model_directory, tokenizer  # noqa: F401
from vanilla_transformer import RecurrentEncoderDecoderConfig, RecurrentEncoderDecoderForConditionalGeneration
from vanilla_transformer.extras.inspection.alignment import STEPS


def test_alignment_error_rate_is_zero_for_itself_and_symmetric():
    gold = [{(0, 0), (1, 1)}, {(0, 1)}]
    assert error_rate(gold, gold) == 0
    assert error_rate([{(0, 0)}, {(1, 0)}], gold) == 1 - 2 * 1 / 5
    assert read_links("0-0 10-2") == {(0, 0), (10, 2)}


def rows(directory, tmp_path, capsys):
    """The names of the table's rows, whose rates are such."""
    for side, line in (("en", "A dog runs in the park.\n"), ("de", "Ein Hund läuft im Park.\n")):
        (tmp_path / side).write_text(line * 2, encoding="utf-8")
    (tmp_path / "links").write_text("0-0 1-1\n0-9\n")
    pair = [str(tmp_path / side) for side in ("en", "de")]
    main([str(directory), "--held-out", *pair, "--test", *pair, "--links", str(tmp_path / "links")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 pairs, heads chosen on 2"
    found = [re.fullmatch(r"\| (.*) \| (\d\.\d{3}) \|", line) for line in lines[4:]]
    assert all(0 <= float(row[2]) <= 1 for row in found)
    return [row[1] for row in found]


def test_the_chosen_heads_stand_beside_every_layer(model_directory, tmp_path, capsys):  # noqa: F811
    assert len(rows(model_directory, tmp_path, capsys)) == 1 + 2 * 3 + 1


def test_a_recurrent_model_has_one_layer_of_attention(tokenizer, tmp_path, capsys):  # noqa: F811
    config = RecurrentEncoderDecoderConfig(vocab_size=len(tokenizer), d_model=16, num_layers=2)
    RecurrentEncoderDecoderForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    chosen, *others = rows(tmp_path / "model", tmp_path, capsys)
    assert chosen.startswith("chosen: ")
    assert others == [f"{step}, layer 0, mean of heads" for step in STEPS] + ["output, last layer's first head"]
