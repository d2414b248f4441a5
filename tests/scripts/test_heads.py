"""Pictures of heads that a rule picks."""

from scripts.experiments import heads
from tests.inspection.conftest import model, model_directory, tokenizer  # noqa: F401

SENTENCES = "two men wait for the bus in the park .\na dog runs in the park and it waits .\ntoo short\n"


def test_pictures_and_a_table_are_written(model_directory, tmp_path, capsys):  # noqa: F811
    (tmp_path / "sentences").write_text(SENTENCES)
    heads.main([model_directory, str(tmp_path / "sentences"), "--pronouns", "It", "--output", str(tmp_path / "out")])
    table = capsys.readouterr().out
    assert (tmp_path / "out" / "heads.md").read_text() == table.removesuffix("\n")
    assert "2 sentences" in table and "a dog runs in the park and it waits ." in table
    for name in ("long-distance", "pronoun", "two-heads"):
        assert f"| {name}.png |" in table
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
