"""`vanilla-transformer tokenizer` on text that is split into sub-words already."""

from vanilla_transformer.cli.program import main
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer


def test_split_text_is_learned_whole_in_lower_case_and_without_a_size_and_decoded_to_words(
    tmp_path, monkeypatch, capsys
):
    text = tmp_path / "text"
    monkeypatch.setenv("HOME", str(tmp_path))
    text.write_text("sa@@ f@@ ti@@ g-@@ grünes gras .\nGRAS ist grün .\n", encoding="utf-8")
    assert main(["tokenizer", str(text), "--algorithm", "presplit", "--lowercase", "--output=~/tokenizer"]) == 0
    assert "269 vocabulary entries" in capsys.readouterr().err
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert tokenizer.tokenize("Gras ist grün .")[0] == "Ġgras"
    assert tokenizer.detokenize("sa@@ f@@ ti@@ g-@@ grünes gras .") == "saftig-grünes gras ."
