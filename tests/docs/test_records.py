"""The records of measurements: a page each, and each cited."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = sorted(ROOT.glob("scripts/*/results/*.md"))
PAGES = [ROOT / "README.md", ROOT / "model_card.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_a_page_with_its_command(record):
    text = record.read_text(encoding="utf-8")
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 300
    assert any(command in text for command in ("python -m scripts.", "vanilla-transformer ", "    make "))
    assert "AMD EPYC" in text and "Verdict" in text


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_cited(record):
    assert record.name in (ROOT / "docs/measured.md").read_text(encoding="utf-8")


def test_every_record_that_a_page_cites_exists():
    names = {path.name for path in RECORDS}
    for page in PAGES:
        cited = set(re.findall(r"[\w-]+-2026-\d\d-\d\d\.md", page.read_text(encoding="utf-8")))
        assert cited <= names, page


def test_results_hold_records_only():
    assert {path.suffix for path in ROOT.glob("scripts/*/results/*")} == {".md"}


def test_files_that_pages_name_exist():
    for page in PAGES:
        if page.name not in ("CHANGELOG.md", "coming-from.md"):  # Of the past, and of other systems.
            named = re.findall(
                r"\b(?:tests|scripts|vanilla_transformer|examples)/[\w/.-]+\.(?:py|md)\b", page.read_text("utf-8")
            )
            assert not [name for name in named if not (ROOT / name).exists()], page
