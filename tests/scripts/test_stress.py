"""A few cases of each stress test, and that their rules find what went wrong in silence."""

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from scripts.stress import cases, disks, inputs, misuse, models, options
from scripts.stress.cases import Command, Fault, Outcome, check_manners, check_untouched, snapshot
from scripts.stress.reference import Reference, Unusable
from vanilla_transformer.translation import load_model, translate_lines

LINES = ["one two three", "", "four four five one nine"]


def spread(groups, number):
    """So many cases, each group's in its share."""
    names = [name for name, group in groups.items() for _ in range(group.share)]
    return [pytest.param(names[seed * len(names) // number], seed, id=f"{seed}") for seed in range(number)]


@pytest.mark.parametrize(("name", "seed"), spread(options.GROUPS, 12))
def test_random_values_of_options_are_refused_or_done(name, seed):
    try:
        cases.case(options.GROUPS, name, seed)
    except cases.TooLong as case:
        pytest.skip(f"too long for the reference: {case}")


@pytest.mark.parametrize(("name", "seed"), spread(models.GROUPS, 12))
def test_damaged_models_are_refused_or_used_as_they_are(name, seed):
    cases.case(models.GROUPS, name, seed)


@pytest.mark.parametrize(("name", "seed"), spread(inputs.GROUPS, 9))
def test_swapped_inputs_are_refused_or_begun_anew(name, seed):
    cases.case(inputs.GROUPS, name, seed)


@pytest.mark.parametrize(("name", "seed"), spread(misuse.GROUPS, 10))
def test_misuse_is_refused_or_has_the_stated_effect(name, seed):
    cases.case(misuse.GROUPS, name, seed)


@pytest.mark.parametrize(("name", "seed"), spread(disks.GROUPS, 4))
def test_full_disks_and_flipped_bits_lose_nothing(name, seed):
    try:
        cases.case(disks.GROUPS, name, seed)
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("settings", [{}, {"num_beams": 1}, {"num_beams": 3, "length_penalty": 2.0}])
def test_independent_reference_translates_like_the_model(settings):
    place = cases.model_ground() / "model"
    ours = [line.text for line in translate_lines(*load_model(place, device="cpu"), LINES, **settings)]
    reference = Reference.load(place)
    assert ours == [reference.translations(line, **settings)[0][0] for line in LINES]


def test_the_reference_takes_no_weights_that_contradict_the_configuration(tmp_path):
    with cases.copied(cases.model_ground() / "model", tmp_path, *models._PARTS):
        models._change(tmp_path, models.CONFIG, "decoder_layers", 9)
    with refused(Unusable, "layers.2"):
        Reference.load(tmp_path)


# --- faults put in on purpose: each changes what the command leaves, and neither its exit code nor its words ---


def after(change):
    """The command, and then something that nobody is told of."""
    from vanilla_transformer import cli

    command = cli.main

    def main(words):
        code = command(words)
        change()
        return code

    cli.main = main


def change_json(name, field, value):
    file = Path(name)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))


def change_weights():
    header, body = models._read(Path("model/model.safetensors"))
    models._write(Path("model/model.safetensors"), header, np.float32(0.5).tobytes() + body[4:])


def say_another_word():
    print("word")


def run_away():
    import threading
    import time

    for _ in range(200):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
    time.sleep(1)


def stumble():
    raise KeyError("source")


TRAINING = {"max_steps": "4"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (partial(change_json, "model/summary.json", "last_loss", float("nan")), "NaN JSON"),
        (partial(change_json, "model/config.json", "d_ff", 7), "d_ff 7 config.json"),
        (partial(change_json, "model/generation_config.json", "num_beams", 7), "search"),
        (change_weights, "mean 2 checkpoints"),
        (stumble, "traceback"),
        (run_away, "runs away"),
    ],
)
def test_a_run_that_is_not_what_its_options_say_is_noticed(tmp_path, monkeypatch, change, named):
    monkeypatch.setattr(cases, "SABOTAGE", partial(after, change))
    cases.write_corpora(tmp_path)
    values = options.BASE | TRAINING
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]
    outcome = cases.run(Command(["train", *cases.corpora(), *words, "--output", "model"]), tmp_path)
    with pytest.raises(Fault) as caught:
        options.judge_train(tmp_path, outcome, TRAINING, values, snapshot(tmp_path))
    assert all(name in str(caught.value) for name in named.split())


def test_a_value_that_is_taken_and_makes_no_sense_is_noticed(tmp_path):
    outcome = Outcome(0, "three\n", "")
    with refused(Fault, "taken", "length_penalty"):
        options.judge_translation(tmp_path, outcome, {"length_penalty": "nan"}, ["ten"], {}, tmp_path, written=False)


def test_a_value_that_makes_sense_and_is_refused_is_noticed(tmp_path):
    outcome = Outcome(2, "", "vanilla-transformer: error: --num-beams must be odd, not 2.\n")
    with refused(Fault, "refused"):
        options.judge_translation(tmp_path, outcome, {"num_beams": "2"}, ["ten"], {}, tmp_path, written=False)


def test_another_translation_than_the_best_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "SABOTAGE", partial(after, say_another_word))
    model = cases.model_ground() / "model"
    outcome = cases.run(Command(["translate", str(model)], stdin=b"one two three\n"), tmp_path)
    with refused(Fault, "2 lines"):
        options.judge_translation(tmp_path, outcome, {}, ["one two three"], {}, model, written=False)
    lines = outcome.out.splitlines()
    options.check_translations(Reference.load(model), ["one two three"], f"{lines[0]}\n")
    with refused(Fault, "reference"):
        options.check_translations(Reference.load(model), ["one two three"], f"{lines[1]}\n")


def test_damage_that_is_used_in_silence_is_noticed(tmp_path):
    (tmp_path / "model").mkdir()
    with cases.copied(cases.model_ground() / "model", tmp_path / "model", *models._PARTS):
        models.not_finite(tmp_path / "model", random.Random(0))
    with refused(Fault, "silence"):
        models.judge(tmp_path, Outcome(0, "ten\n", ""), "ten\n", ["ten"], models.WEIGHTS)


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (Outcome(1, "", "Traceback (most recent call last):\n"), "traceback"),
        (Outcome(1, "", "something went wrong\n"), "one sentence"),
        (Outcome(1, "", "vanilla-transformer: error: Nothing is right.\n"), "num_beams"),
        (Outcome(-11, "", ""), "signal 11"),
        (Outcome(0, "", "UserWarning: think again\n"), "noise"),
        (Outcome(0, "", "", seconds=1e9), "no end"),
        (Outcome(0, "", "", memory=1 << 40), "runs away"),
    ],
)
def test_bad_manners_are_noticed(outcome, named):
    with refused(Fault, *named.split()):
        check_manners(outcome, names=["num_beams"])


def test_files_changed_by_a_refused_command_are_noticed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    before = snapshot(tmp_path)
    check_untouched(before, tmp_path)
    (tmp_path / "new").touch()
    with refused(Fault, "new"):
        check_untouched(before, tmp_path)
    (tmp_path / "mine").write_text("yours")
    with refused(Fault, "mine"):
        check_untouched(before, tmp_path)


def test_a_run_that_goes_on_with_other_text_in_silence_is_noticed():
    whole = models.stopped_ground() / "whole"
    models.check_same_run(whole, whole)
    with refused(Fault, "from the start"):
        models.check_same_run(cases.model_ground() / "other", whole)


def test_a_fault_is_printed_with_the_command_that_repeats_it(capsys, argv):
    groups = {"bad": cases.Group(1, lambda directory, draw: cases.strict_json("NaN", "it"))}
    argv("--cases", 2, "--seed", 5)
    with pytest.raises(SystemExit) as done:
        cases.main("scripts.stress.options", None, groups, 1, "cases")
    said = capsys.readouterr().out
    assert done.value.code == 1 and "FAULT bad: it holds NaN" in said
    assert "python -m scripts.stress.options --only bad --seed 6 --cases 1" in said
