"""The measurements of translating files, on small ones."""

import pytest
from small_models import save_translator

from scripts.benchmarks import translate as bench_translate
from vanilla_transformer.translation import LineTranslator

OPTIONS = ["--num-beams", "1", "--max-length-beyond-source", "1"]


@pytest.fixture
def here(monkeypatch, quiet_libraries):
    """Measures in this process."""
    monkeypatch.setattr(bench_translate, "_in_new_process", bench_translate._translated)
    measured = LineTranslator._generate
    yield
    LineTranslator._generate = measured


@pytest.fixture
def model(tmp_path):
    return str(save_translator(tmp_path / "model"))


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").write_text("".join(f"{'a b ' * number}\n" for number in range(1, 13)))
    return str(tmp_path / "text")


@pytest.mark.parametrize("own", [True, False])
def test_memory_is_listed_by_lines_of_a_text_or_of_cmudict(here, model, text, own):
    table = bench_translate.memory_table(model, text if own else None, [10, 20], OPTIONS).splitlines()
    assert [row.split("|")[1].strip() for row in table[2:]] == ["10", "20"]
    assert all(float(row.split("|")[3].strip(" MB").replace(",", "")) > 10 for row in table[2:])


def test_batches_are_listed_by_size_with_their_padding(here, model, text):
    settings = {"model": model, "text": text, "options": OPTIONS}
    table = bench_translate.batch_table(settings, [1, 100_000], repeats=1).splitlines()
    padding = {row.split("|")[1].strip(): float(row.split("|")[4].strip(" %")) for row in table[2:]}
    # One line in each batch needs no padding; all in one are padded to the longest.
    assert padding["1"] == 0 and padding["100,000"] > 10
