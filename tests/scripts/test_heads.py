"""Pictures of heads that a rule picks."""

import pytest
import torch
from refusals import refused

from scripts.experiments import heads
from scripts.experiments.runs import ExperimentError
from tests.inspection.conftest import model, model_directory, tokenizer  # noqa: F401
from vanilla_transformer.inspection import Attention, Pieces

SENTENCES = "two men wait for the bus in the park .\na dog runs in the park and it waits .\ntoo short\n"


def read(words: str, layers: int = 2, heads_there: int = 3) -> Attention:
    """A sentence whose words give the same weight to everything."""
    texts = tuple(words.split())
    pieces = Pieces(texts, texts, tuple(range(len(texts))))
    weights = torch.full((layers, heads_there, len(texts), len(texts)), 1 / len(texts))
    nothing = Pieces((), (), ())
    return Attention(pieces, nothing, nothing, {"encoder": weights})


def look(one: Attention, layer: int, head: int, query: int, key: int) -> None:
    one.weights["encoder"][layer, head, query] = 0
    one.weights["encoder"][layer, head, query, key] = 1


def test_far_looking_head_is_found_but_not_uniform_or_mark_heads():
    one, other = read("a b c d e f g . </s>"), read("a b c d e f g . </s>")
    for query in range(9):
        look(one, 0, 0, query, 6)  # All look there: nothing stands out.
    look(one, 0, 1, 0, 7)
    look(one, 0, 1, 0, 8)
    look(other, 0, 2, 0, 4)  # Too near.
    look(other, 1, 2, 6, 1)
    pick = heads.steadiest([one, other], far=5)
    assert (pick.sentence, pick.layer, pick.head, pick.query, pick.key, pick.count) == (1, 1, 2, 6, 1, 8)
    assert pick.value == pytest.approx(1 - 1 / 9)


def test_pronoun_head_has_the_highest_mean_without_neighbours():
    one, other = read("the dog and It ran ."), read("it is a big tree .")
    look(one, 0, 0, 3, 2)  # Beside it.
    look(one, 1, 2, 3, 1)
    look(other, 1, 2, 0, 4)
    look(other, 0, 1, 0, 4)
    pick = heads.steadiest([one, other], 2, {"it"})
    assert (pick.layer, pick.head, pick.sentence, pick.query, pick.key, pick.count) == (1, 2, 0, 3, 1, 2)
    assert pick.mean == pytest.approx(1 - 1 / 6)
    with refused(ExperimentError, "pronoun"):
        heads.steadiest([one, other], 2, {"she"})


def test_shown_heads_differ_most_in_the_sentence_nearest_the_mean():
    all_read = [read("a b c d") for _ in range(3)]
    for one, differing in zip(all_read, (0, 1, 4), strict=True):
        for query in range(differing):
            look(one, 1, 0, query, 0)
            look(one, 1, 2, query, 3)
    sentence, layer, pair, mean = heads.two_heads(all_read)
    assert (sentence, layer, pair) == (1, 1, (0, 2)) and mean == pytest.approx((0 + 1 / 4 + 1) / 3)


def test_pictures_and_a_table_are_written(model_directory, tmp_path, capsys):  # noqa: F811
    (tmp_path / "sentences").write_text(SENTENCES)
    heads.main([model_directory, str(tmp_path / "sentences"), "--pronouns", "It", "--output", str(tmp_path / "out")])
    table = capsys.readouterr().out
    assert (tmp_path / "out" / "heads.md").read_text() == table.removesuffix("\n")
    assert "2 sentences" in table and "a dog runs in the park and it waits ." in table
    for name in ("long-distance", "pronoun", "two-heads"):
        assert f"| {name}.png |" in table
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_one_word_keeps_only_its_lines():
    one = heads.alone(read("a b c"), 1).weights["encoder"]
    assert one[:, :, 1].min() > 0 and one[:, :, [0, 2]].max() == 0


def test_a_file_without_a_sentence_of_that_length_is_refused(model_directory, tmp_path):  # noqa: F811
    (tmp_path / "sentences").write_text("too short\n")
    with refused(ExperimentError, "6", "16"):
        heads.main([model_directory, str(tmp_path / "sentences"), "--pronouns", "it", "--output", str(tmp_path)])
