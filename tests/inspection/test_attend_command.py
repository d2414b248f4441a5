"""`vanilla-transformer attend`."""

from small_models import random_model, save

from vanilla_transformer.cli import main


def test_a_model_of_one_stack_has_a_page_in_a_file_of_its_own(tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(random_model("language-model", vocab_size=len(tokenizer)), tokenizer, tmp_path / "lm")
    assert main(["attend", "lm", "A dog runs."]) == 0
    assert '"A", "dog"' in (tmp_path / "attention.html").read_text(encoding="utf-8")
