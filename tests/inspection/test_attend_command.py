"""`vanilla-transformer attend`."""

from small_models import random_model, save

from vanilla_transformer.cli import main


def test_lines_become_one_page(model_directory, tmp_path):
    (tmp_path / "in.en").write_text("A dog runs.\n\nTwo men wait.\n")
    words = ["--input", str(tmp_path / "in.en"), "--output", str(tmp_path / "page.html")]
    assert main(["attend", model_directory, *words]) == 0
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"A", "dog"' in html and '"Two", "men"' in html


def test_a_picture_is_made_without_a_page(model_directory, tmp_path):
    picture, options = tmp_path / "picture.png", ["--head", "all", "--view", "lines", "--layer", "mean"]
    assert main(["attend", model_directory, "A dog runs.", "--picture", str(picture), *options]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG") and not (tmp_path / "attention.html").exists()


def test_a_model_of_one_stack_has_a_page_and_no_cross_attention(tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(random_model("language-model", vocab_size=len(tokenizer)), tokenizer, tmp_path / "lm")
    assert main(["attend", "lm", "A dog runs.", "--picture", "a.png", "--output", "a.html"]) == 0
    assert main(["attend", "lm", "A dog runs.", "--picture", "same.png", "--kind", "decoder"]) == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "same.png").read_bytes()
