"""`vanilla-transformer tokenizer` on text that is split into sub-words already."""

import pytest

from vanilla_transformer.cli.program import main
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("sa@@ f@@ ti@@ g-@@ grünes gras .\ngras ist grün .\n", encoding="utf-8")
    return path


def test_split_text_is_learned_whole_without_a_size_and_decoded_to_words(text, tmp_path, capsys):
    output = str(tmp_path / "tokenizer")
    assert main(["tokenizer", str(text), "--algorithm", "presplit", "--output", output]) == 0
    assert "269 vocabulary entries" in capsys.readouterr().err
    tokenizer = VanillaTransformerTokenizer.from_pretrained(output)
    assert tokenizer.tokenize("gras ist grün .")[0] == "Ġgras"
    assert tokenizer.detokenize("sa@@ f@@ ti@@ g-@@ grünes gras .") == "saftig-grünes gras ."


def test_lower_cased_text_is_learned_from_and_read(tmp_path):
    (tmp_path / "text").write_text("HELLO World\n" * 9)
    output = str(tmp_path / "tokenizer")
    words = ["tokenizer", str(tmp_path / "text"), "--vocab-size", "267", "--lowercase", "--output", output]
    assert main(words) == 0
    tokenizer = VanillaTransformerTokenizer.from_pretrained(output)
    one, other = tokenizer.tokenize("Hello"), tokenizer.tokenize("hello")
    assert one == other and "".join(one) == "Ġhello"
