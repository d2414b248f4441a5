"""A setting has one name, one type and one set of limits: in YAML, in Python and on the command line."""

import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings, strategies as st
from refusals import refused

from vanilla_transformer.cli.program import parse
from vanilla_transformer.errors import SettingError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.summary import TrainedRun

HOME, PLACES = os.path.expanduser("~"), ("output", "from_model", "tokenizer")
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(lambda text: text[0] != "-")
VALUES = {
    "examples": st.lists(WORDS, min_size=1).map(tuple),
    "labels": st.lists(WORDS, min_size=1).map(tuple),
    "text_column": WORDS.filter(lambda text: text != "None"),
    "learning_rate_scale": st.floats(0, 1e9),
    "adam_epsilon": st.floats(0, 1, exclude_min=True),
    "max_steps": st.integers(1, 10**12),
    "seed": st.integers(0, 2**31 - 1),
    "tokenizer_lowercase": st.booleans(),
    "positional_encoding": st.sampled_from(["sinusoidal", "learned"]),
    "train": st.just(("a.en", "a.de", "weight=0.7", "+", "b.tsv", "weight=2", "text_column=1:30")),
}


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@settings(max_examples=20)
@given(options=st.fixed_dictionaries({}, optional=VALUES))
def test_python_yaml_and_the_command_line_make_the_same_recipe(tmp_path_factory, options):
    recipe = Recipe.of(**options)
    folder = tmp_path_factory.mktemp("recipe")
    assert load_recipe(written(folder, recipe.to_yaml())) == recipe
    assert load_recipe(written(folder, yaml.safe_dump(recipe.given()))) == recipe
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option if value else f"--no-{option[2:]}"]
        else:
            words += [option, *(value if isinstance(value, tuple) else [str(value)])]
    assert parse(["train", *words]).recipe == recipe


def test_settings_stand_in_their_blocks_or_outside(tmp_path):
    flat = "train: [a.en, a.de]\ntokenizer: there\nvocab_size: 300\nfrom_model: general\n"
    blocks = "data:\n  train: [a.en, a.de]\ntokenizer:\n  tokenizer: there\n  vocab_size: 300\nstart:\n"
    blocks += "  from_model: general\n"
    assert load_recipe(written(tmp_path, flat)) == load_recipe(written(tmp_path, blocks))
    assert load_recipe(written(tmp_path, "optimization:\ntokenizer:\nrecurrent:\nseed: 1\n")) == Recipe()
    home = Recipe.of(train=("~/a.en", "~/a.de"), **dict.fromkeys(PLACES, "~/m"))
    assert home == Recipe.of(train=(f"{HOME}/a.en", f"{HOME}/a.de"), **dict.fromkeys(PLACES, f"{HOME}/m"))
    text = Recipe.of(metrics=(), max_steps=3).to_yaml()
    assert "metrics: []" in text and "max_steps: 3" in text and "recurrent:" not in text


@pytest.mark.parametrize("word", ["1:30", "on", "no", "1e-4", "007", "2001-01-01", "0x10", "1_000", "=", "<<"])
def test_text_stays_text(tmp_path, word):
    recipe = load_recipe(written(tmp_path, f"output: {word}\nlabels: [{word}, 'null']\n"))
    assert (recipe.run.output, recipe.classification.labels) == (word, (word, "null"))


def test_numbers_are_read_as_the_field_has_them(tmp_path):
    recipe = load_recipe(written(tmp_path, "adam_epsilon: 1e-9\nlearning_rate_scale: 2\nmax_steps: '010'\n"))
    found = recipe.optimization
    assert (found.adam_epsilon, found.learning_rate_scale, found.max_steps) == (1e-9, 2.0, 10)
    assert type(Recipe.of(learning_rate=1).optimization.learning_rate) is float


def test_python_gives_paths_runs_and_numbers_of_numpy(tmp_path):
    paths = Recipe.of(train=(Path("a.en"), "a.de"), output=Path("~/m"), from_model=TrainedRun(tmp_path))
    assert paths == Recipe.of(train=("a.en", "a.de"), output="~/m", from_model=str(tmp_path))
    numbers = Recipe.of(max_steps=np.int64(3), dropout=np.float32(0.5), adam_beta1=np.float64(0.25))
    assert numbers == Recipe.of(max_steps=3, dropout=0.5, adam_beta1=0.25)
    assert numbers.to_yaml() == Recipe.of(max_steps=3, dropout=0.5, adam_beta1=0.25).to_yaml()
    assert Recipe.of(tokenizer="there").with_options(tokenizer=None) == Recipe()
    for setting in ({"max_steps": np.float64(1.5)}, {"max_steps": True}, {"seed": 1 + 0j}):
        with refused(SettingError, *setting):
            Recipe.of(**setting)


def test_the_recipe_of_a_saved_model_may_have_settings_that_there_are_not(tmp_path):
    unknown = "unheard:\n  of: 1\nof: 2\nstart:\n  model: a\ntokenizer:\n  algorithm: presplit\nmodel:\n  unheard: 3\n"
    file = written(tmp_path, f"{unknown}optimization:\n  batch_tokens: 4096\nseed: 3\n")
    assert load_recipe(file, lenient=True) == Recipe.of(batch_tokens=4096, seed=3)
    with refused(SettingError, "unheard"):
        load_recipe(file)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("max_steps: many", "max_steps 'many'"),
        ("max_steps: 1.5", "max_steps '1.5'"),
        ("max_steps: 0", "max_steps '0'"),
        ("max_steps: 9223372036854775808", "max_steps '9223372036854775808'"),
        ("output: s3://b/m", "output 's3://b/m'"),
        ("from_model: hf://b/m", "from_model 'hf://b/m'"),
        ("dropout: nan", "dropout 'nan'"),
        ("learning_rate: inf", "learning_rate 'inf'"),
        ("seed: 1\nseed: 2", "seed line 2"),
        ("train:\n- corpus: a.tsv\n  tag: AA\n  tag: BB\n", "tag line 4"),
        ("precision: float8", "precision auto float32 bfloat16 'float8'"),
        ("tokenizer_lowercase: maybe", "tokenizer_lowercase 'maybe'"),
        ("labels: {a: 1}", "labels"),
        ("bach_tokens: 4096", "'bach_tokens' 'batch_tokens'"),
        ("optimization:\n  max_stops: 3\n", "'max_stops' 'max_steps'"),
        ("max_steps: 3\noptimization:\n  max_steps: 4\n", "max_steps twice"),
        ("", "setting"),
        ("a: [", "YAML"),
        ("{a: " * 3000, "YAML"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_file_and_setting(tmp_path, line, named):
    with refused(SettingError, "mine.yaml", *named.split()):
        load_recipe(written(tmp_path, line))


def test_a_recipe_that_is_not_there_is_refused_with_the_nearest():
    with refused(SettingError, "'cmudikt'", "'cmudict'"):
        load_recipe("cmudikt")
