"""BLEU as the paper's authors counted it."""

import pytest

from vanilla_transformer.evaluation import score


def value(name, predictions, references):
    [result] = score([name], predictions, [[line] for line in references])
    return result.value


def test_paper_bleu_splits_only_hyphens_within_words():
    hyphens_apart = "a - b c ##AT##-##AT## d-e - f"
    raw, reference = "a - b c-d-e - f", "a - b x"
    assert value("paper_bleu", [raw], [reference]) == value("tokenized_bleu", [hyphens_apart], [reference])


def test_paper_bleu_of_raw_text_is_tokenized_bleu_of_text_split_by_hand():
    raw = [
        'Er sagte: "Die Nord-Süd-Achse, z. B. der Weg nach Rom, kostet 5,300 Euro..."',
        "[1] Peter's & Paul's",
        "",
    ]
    by_hand = [
        "Er sagte : &quot; Die Nord ##AT##-##AT## Süd ##AT##-##AT## Achse , z. B. der Weg nach Rom , kostet "
        "5,300 Euro ... &quot;",
        "&#91; 1 &#93; Peter &apos; s &amp; Paul &apos; s",
        "",
    ]
    other = [
        "Er sagte : &quot; Die Achse , z. B. der Weg , kostet 5 Euro ... &quot;",
        "&#91; 2 &#93; Paul &apos; s",
        "x",
    ]
    other_raw = ['Er sagte: "Die Achse, z. B. der Weg, kostet 5 Euro..."', "[2] Paul's", "x"]
    expected = value("tokenized_bleu", by_hand, other)
    assert 10 < expected < 90
    assert value("paper_bleu", raw, other_raw) == pytest.approx(expected)


@pytest.mark.parametrize("quoted", ["„eins zwei“ drei", "“eins zwei” drei", "«eins zwei» drei", "「eins zwei」 drei"])
def test_paper_bleu_takes_all_quotes_for_straight_ones(quoted: str):
    assert value("paper_bleu", [quoted], ['"eins zwei" drei']) == pytest.approx(100)
    assert value("paper_bleu", ["er hat‘s ‚eins zwei drei’"], ["er hat's 'eins zwei drei'"]) == pytest.approx(100)


def test_paper_bleu_is_german_unless_another_language_is_named():
    predictions, references = ["l'art de l'eau d'ici"], ["l'art de l'air d'ici"]
    german = ["l &apos; art de l &apos; eau d &apos; ici"], ["l &apos; art de l &apos; air d &apos; ici"]
    french = ["l&apos; art de l&apos; eau d&apos; ici"], ["l&apos; art de l&apos; air d&apos; ici"]
    for name, split in [("paper_bleu", german), ("paper_bleu:de", german), ("paper_bleu:fr", french)]:
        assert value(name, predictions, references) == pytest.approx(value("tokenized_bleu", *split))
    assert value("paper_bleu", predictions, references) != value("paper_bleu:fr", predictions, references)
