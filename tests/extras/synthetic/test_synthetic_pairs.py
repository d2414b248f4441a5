"""`vanilla-transformer back-translate` and `distil`: pairs, what is taken out, and going on after any end."""

import json
import random

import pytest
from faults import at_call
from small_models import SIZES, save_translator

from vanilla_transformer import (
    VanillaTransformerTokenizer,
    train,
)
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.translation import LineTranslator

SETTINGS = ["--num-beams", "2", "--max-length-beyond-source", "1", "--precision", "float32", "--device", "cpu"]


def saved_model(directory, seed, **sizes):
    return str(save_translator(directory, seed, **sizes))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("model"), 0)


@pytest.fixture
def run(run_command, small_windows, monkeypatch, tmp_path, model):
    """Runs a command in a directory with a file `mono`; its exit code and what it said on both streams."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = ["".join(draw.choices("abcde ", k=draw.randint(0, 12))) for _ in range(20)]
    (tmp_path / "mono").write_text("".join(f"{line}\n" for line in [*lines, *lines[:3]]))

    def run(*words, settings=SETTINGS):
        names = ["--reverse", model] if words[0] == "back-translate" else []
        return run_command(*words, *names, *settings)

    return run


@pytest.fixture
def translating(monkeypatch):
    """Has lines translated by a function instead of the model."""

    def translating(translation):
        def translate(self, lines, progress=None):
            found = original(self, lines, progress)
            return [translation(line, one) for line, one in zip(lines, found, strict=True)]

        original = LineTranslator.translate
        monkeypatch.setattr(LineTranslator, "translate", translate)

    return translating


def pairs(directory):
    return list(
        zip(
            *((directory / name).read_text("utf-8").splitlines() for name in ("source.txt", "target.txt")), strict=True
        )
    )


def files(directory):
    return {name: (directory / name).read_bytes() for name in ("source.txt", "target.txt", "report.json")}


def test_back_translation_pairs_each_line_with_what_translate_makes_of_it(run, model, tmp_path):
    code, out, err = run("back-translate", "mono", "--output", "pairs", "--length-ratio", 100, "--copy-overlap", 1)
    assert (code, out) == (0, "pairs/source.txt pairs/target.txt\n")
    assert run("translate", model, "mono", "--output", "whole")[0] == 0
    mono, whole = ((tmp_path / name).read_text().splitlines() for name in ("mono", "whole"))
    expected = [(translation, line) for line, translation in zip(mono, whole, strict=True) if line.strip()]
    assert pairs(tmp_path / "pairs") == [one for one in dict.fromkeys(expected) if one[0].strip()]
    report = json.loads((tmp_path / "pairs" / "report.json").read_text())
    assert report["read"] == len(mono) == report["kept"] + sum(report["dropped"].values())
    assert report["dropped"]["duplicate"] >= 3 and f"{report['kept']} pairs of 23 lines; removed: " in err


def test_distillation_pairs_each_line_the_other_way_round(run, model, tmp_path):
    assert run("back-translate", "mono", "--output", "back", "--length-ratio", 100, "--copy-overlap", 1)[0] == 0
    assert run("distil", model, "mono", "--output", "pairs", "--length-ratio", 100)[0] == 0
    back = pairs(tmp_path / "back")
    assert back and pairs(tmp_path / "pairs") == [(target, source) for source, target in back]


def test_several_teachers_are_an_ensemble(run, model, tmp_path):
    other = saved_model(tmp_path / "other", 1)
    assert run("distil", model, other, "mono", "--output", "pairs", "--length-ratio", 100)[0] == 0
    assert run("translate", model, other, "pairs/source.txt", "--output", "whole")[0] == 0
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "pairs" / "target.txt").read_bytes()
    assert run("distil", model, "mono", "--output", "alone", "--length-ratio", 100)[0] == 0
    assert pairs(tmp_path / "alone") != pairs(tmp_path / "pairs")


def test_a_killed_command_goes_on_to_the_same_pairs(run, tmp_path):
    assert run("back-translate", "mono", "--output", "whole", "--sample", settings=SETTINGS[2:])[0] == 0
    with at_call(3, LineTranslator, "translate"):
        assert run("back-translate", "mono", "--output", "pairs", "--sample", settings=SETTINGS[2:])[0] == 130
    assert not (tmp_path / "pairs" / "report.json").exists()
    assert run("back-translate", "mono", "--output", "pairs", "--sample", settings=SETTINGS[2:])[0] == 0
    assert files(tmp_path / "pairs") == files(tmp_path / "whole")


def test_tasks_one_by_one_give_the_pairs_of_one_process_with_the_last(run, tmp_path):
    assert run("back-translate", "mono", "--output", "whole")[0] == 0
    for number, left in ((1, 2), (0, 1)):
        code, out, err = run("back-translate", "mono", "--output", "pairs", "--tasks", 3, "--task", number)
        assert (code, out, err) == (0, "", f"{left} of 3 tasks are left.\n")
    assert run("back-translate", "mono", "--output", "pairs", "--tasks", 3, "--task", 2)[0] == 0
    assert files(tmp_path / "pairs") == files(tmp_path / "whole")


@pytest.mark.parametrize("tasks", [[], ["--tasks", 2]])
def test_text_of_which_nothing_is_left_gives_no_pairs_and_says_why(run, tmp_path, tasks):
    (tmp_path / "blank").write_text("\n \n")
    code, _, err = run("back-translate", "blank", "--output", "pairs", *tasks)
    assert code == 1 and "No pair is left of 2 lines; removed: 2 empty." in err
    assert pairs(tmp_path / "pairs") == []


def test_other_filters_take_other_pairs_without_a_new_translation(run, tmp_path):
    assert run("back-translate", "mono", "--output", "pairs", "--length-ratio", 100)[0] == 0
    before = pairs(tmp_path / "pairs")
    with at_call(1, LineTranslator, "translate"):
        assert run("back-translate", "mono", "--output", "pairs", "--length-ratio", 1)[0] == 1
    assert set(pairs(tmp_path / "pairs")) < set(before)
    assert json.loads((tmp_path / "pairs" / "report.json").read_text())["dropped"]["length_ratio"] > 0


def test_copies_are_dropped_from_back_translations_only(run, model, tmp_path, translating):
    from dataclasses import replace

    def copied(line, translation):
        [first, *_] = translation.hypotheses
        return replace(translation, hypotheses=(replace(first, text=line),))

    translating(copied)
    assert run("back-translate", "mono", "--output", "back")[0] == 1
    assert pairs(tmp_path / "back") == []
    assert run("distil", model, "mono", "--output", "pairs")[0] == 0
    assert len(pairs(tmp_path / "pairs")) > 10


def test_a_model_that_translates_into_the_language_of_the_text_is_told(run, tmp_path, translating):
    from dataclasses import replace

    def always(text):
        translating(lambda line, one: replace(one, hypotheses=(replace(one.hypotheses[0], text=text),)))

    (tmp_path / "german").write_text("der Hund\ndie Katze\n")
    always("Hund Katze")
    code, _, err = run("back-translate", "german", "--output", "back")
    assert code == 0 and "100% of the words in the first translations are words of the text: does " in err
    assert json.loads((tmp_path / "back" / "report.json").read_text())["shared_words"] == 1
    assert "warning" not in run("back-translate", "german", "--output", "back", "--copy-overlap", 1)[2]
    always("dog cat")
    assert "warning" not in run("back-translate", "german", "--output", "other")[2]


def test_lines_that_the_model_would_cut_are_not_translated(run, model, tmp_path, capsys):
    short = saved_model(tmp_path / "short", 0, positional_encoding="learned", max_position_embeddings=12)
    code, _, err = run("distil", short, "mono", "--output", "pairs")
    assert code == 0 and "was cut" not in err
    assert json.loads((tmp_path / "pairs" / "report.json").read_text())["dropped"]["too_long"] > 0


def test_another_input_model_or_directory_is_refused_in_a_sentence(run, tmp_path):
    assert run("back-translate", "mono", "--output", "pairs")[0] == 0
    (tmp_path / "other").write_text("a b\n")
    code, _, err = run("back-translate", "other", "--output", "pairs")
    assert code == 1 and "pairs/work holds the tasks of another input" in err
    code, _, err = run("distil", saved_model(tmp_path / "second", 1), "mono", "--output", "pairs")
    assert code == 1 and "pairs/work holds the tasks of another model" in err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "source.txt").write_text("mine\n")
    code, _, err = run("back-translate", "mono", "--output", "full")
    assert code == 2 and "full is not empty: name another directory." in err
    assert (tmp_path / "full" / "source.txt").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--length-ratio", "0.5"], "--length-ratio must be at least 1"),
        (["--copy-overlap", "2"], "--copy-overlap must be at least 0 and at most 1"),
        (["--max-length", "0"], "--max-length must be at least 1"),
        (["--top-k", "3"], "--top-k is for --sample."),
        (["--workers", "2"], "--workers is for numbered tasks"),
        (["--sample"], "--sample cannot be combined with --num-beams"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(run, tmp_path, words, said):
    code, _, err = run("back-translate", "mono", "--output", "pairs", *words)
    assert code == 2 and said in err and not (tmp_path / "pairs").exists()


def test_a_store_elsewhere_is_no_place_for_pairs(run):
    code, _, err = run("back-translate", "mono", "--output", "s3://bucket/pairs")
    assert code == 2 and "is not on this machine" in err


def test_train_takes_what_was_printed_with_a_tag(run, tmp_path):
    _, out, _ = run("back-translate", "mono", "--output", "pairs", "--length-ratio", 100)
    sizes = {**SIZES, "vocab_size": 270}
    train(Recipe.of(train=(*out.split(), "tag=BT"), output=str(tmp_path / "run"), max_steps=2, **sizes))
    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "run")
    assert "<BT>" in tokenizer.get_vocab() and len(tokenizer) == 270
