"""The measurements of translating files, on small ones."""

import bench_preparation
import bench_translate
import pytest

from vanilla_transformer.translation import LineTranslator


@pytest.fixture
def here(monkeypatch):
    """Measures in this process."""
    monkeypatch.setattr(bench_preparation, "WORDS", 300)
    monkeypatch.setattr(bench_translate, "VOCABULARY", 300)
    monkeypatch.setattr(bench_translate, "_in_new_process", bench_translate._translated)
    monkeypatch.setattr("transformers.utils.logging._tqdm_active", False)
    # What is measured is put back.
    monkeypatch.setattr(LineTranslator, "_generate", LineTranslator._generate)


def test_memory_is_listed_by_lines_and_leaves_no_translations(here, tmp_path):
    options = ["--num-beams", "1", "--max-length-beyond-source", "1"]
    table = bench_translate.memory_table(tmp_path, [10, 20], options).splitlines()
    assert [row.split("|")[1].strip() for row in table[2:]] == ["10", "20"]
    assert {path.name for path in tmp_path.iterdir()} == {"model", "10.txt", "20.txt"}


def test_batches_are_listed_by_size_with_their_padding(here, tmp_path):
    bench_preparation.write_text(tmp_path / "text", 12, 0)
    model = bench_translate.make_model(tmp_path / "model", tmp_path / "text")
    settings = {"model": str(model), "text": str(tmp_path / "text")}
    settings["options"] = ["--num-beams", "1", "--max-length-beyond-source", "1"]
    table = bench_translate.batch_table(settings, [1, 100_000], repeats=1).splitlines()
    padding = {row.split("|")[1].strip(): float(row.split("|")[4].strip(" %")) for row in table[2:]}
    # One line in each batch needs no padding; all in one are padded to the longest.
    assert padding["1"] == 0 and padding["100,000"] > 10
