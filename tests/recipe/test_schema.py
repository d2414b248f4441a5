import dataclasses
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vanilla_transformer.cli.arguments import help_of
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.recipe.schema import Recipe, places


def written(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reading_recipes_needs_no_torch():
    code = "import sys, vanilla_transformer.recipe.schema as r; r.Recipe(); print(*sys.modules)"
    # As the command itself does it: a plain import of the package registers its classes with transformers.
    program = f"import sys; sys.argv = ['vanilla-transformer']; {code}"
    modules = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "numpy"} & set(modules)


def test_a_written_recipe_is_read_back_the_same(tmp_path):
    recipe = Recipe.of(
        train=("a.en", "a.de"),
        adam_epsilon=1e-9,
        max_grad_norm=1.0,
        vocab_size=8000,
        examples=("Grüße: 'ja'\n", "no", "1e-9"),
        positional_encoding="learned",
        output="out",
    )
    assert load_recipe(written(tmp_path, recipe.to_yaml())) == recipe


@given(st.lists(st.text()), st.floats(0, 1e9), st.integers(0, 2**31 - 1))
def test_any_text_and_number_survives_yaml(tmp_path_factory, examples, scale, seed):
    recipe = Recipe.of(examples=tuple(examples), learning_rate_scale=scale, seed=seed)
    assert load_recipe(written(tmp_path_factory.mktemp("recipe"), recipe.to_yaml())) == recipe


@pytest.mark.parametrize("block", Recipe().blocks.values(), ids=Recipe().blocks)
def test_every_field_says_what_it_is(block):
    described = help_of(type(block))
    assert list(described) == [field.name for field in dataclasses.fields(block)]
    assert all(text[0].isalpha() and text.endswith(".") for text in described.values())


def test_every_option_has_one_place():
    fields = [field for block in Recipe().blocks.values() for field in dataclasses.fields(block)]
    assert len(places()) == len(fields) == len(Recipe().options) - 1


def test_a_flat_recipe_and_one_in_blocks_are_the_same(tmp_path):
    flat = """
task: translation
train: [a.en, a.de]
tokenizer: there
tokenizer_sides: target
vocab_size: 300
from_model: general
max_steps: 30
output: model
"""
    blocks = """
data:
  train: [a.en, a.de]
tokenizer:
  name: there
  sides: target
  vocab_size: 300
start:
  model: general
optimization:
  max_steps: 30
run:
  output: model
"""
    assert load_recipe(written(tmp_path, flat)) == load_recipe(written(tmp_path, blocks))


def test_unused_blocks_are_omitted_and_disabled_options_written():
    text = Recipe.of(metrics=(), max_steps=3).to_yaml()
    assert "metrics: []" in text and "max_steps: 3" in text
    assert "recurrent:" not in text


def test_an_empty_block_has_its_defaults(tmp_path):
    assert load_recipe(written(tmp_path, "optimization:\ntokenizer:\nrecurrent:\nseed: 1\n")) == Recipe()


def test_options_given_as_blocks_are_told_where_they_belong():
    with refused(RecipeError, "Recipe.of(seed=1, max_steps=3)"):
        Recipe(seed=1, max_steps=3)
    assert pickle.loads(pickle.dumps(Recipe.of(seed=2))) == Recipe.of(seed=2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("optimization:\n  max_stops: 3\n", "'max_stops' optimization 'max_steps'"),
        ("tokenizer:\n  tokenizer_sides: target\n", "'tokenizer_sides' tokenizer"),
        ("data: a.tsv\n", "data"),
        ("max_steps: 3\noptimization:\n  max_steps: 4\n", "max_steps twice"),
        ("optimization:\n  max_steps: many\n", "max_steps 'many'"),
    ],
)
def test_a_block_that_cannot_be_read_is_refused(tmp_path, text, named):
    with refused(RecipeError, "mine.yaml", *named.split()):
        load_recipe(written(tmp_path, text))


def test_numbers_that_yaml_takes_for_text_and_single_files_are_understood(tmp_path):
    recipe = load_recipe(written(tmp_path, "adam_epsilon: 1e-9\nlearning_rate_scale: 2\ntrain: pairs.tsv\n"))
    assert recipe.optimization.adam_epsilon == 1e-9
    assert recipe.optimization.learning_rate_scale == 2.0
    assert recipe.data.train == (CorpusSpec(("pairs.tsv",)),)


def test_the_recipe_of_a_saved_model_may_have_fields_that_there_are_not(tmp_path):
    known = "optimization:\n  batch_tokens: 4096\nseed: 3\n"
    file = written(tmp_path, f"unheard:\n  of: 1\nof: 2\n{known}model:\n  unheard: 3\n")
    assert load_recipe(file, lenient=True) == Recipe.of(batch_tokens=4096, seed=3)
    with refused(RecipeError, "unheard"):
        load_recipe(file)


def test_a_misspelt_field_is_refused_with_file_and_nearest_field(tmp_path):
    with refused(RecipeError, "mine.yaml", "'bach_tokens'", "'batch_tokens'"):
        load_recipe(written(tmp_path, "bach_tokens: 4096\n"))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("max_steps: many", "max_steps 'many'"),
        ("max_steps: true", "max_steps True"),
        ("max_steps: 1.5", "max_steps 1.5"),
        ("max_steps: 0", "max_steps 0"),
        ("max_steps: 9223372036854775808", "max_steps 9223372036854775808"),
        ("dropout: 1.0", "dropout 1.0"),
        ("max_length_beyond_source: -1", "max_length_beyond_source -1"),
        ("num_beams: 2147483648", "num_beams 2147483648"),
        ("length_penalty: .nan", "length_penalty nan"),
        ("length_penalty: 1e9", "length_penalty 1000000000.0"),
        ("dropout: .nan", "dropout nan"),
        ("learning_rate: .inf", "learning_rate inf"),
        ("learning_rate: 0", "learning_rate"),
        ("adam_epsilon: 0", "adam_epsilon"),
        ("max_grad_norm: .nan", "max_grad_norm nan"),
        ("seed: 1.5", "seed 1.5"),
        ("seed: '1'", "seed '1'"),
        ("seed: 1\nseed: 2", "seed line 2"),
        ("train:\n- corpus: a.tsv\n  tag: AA\n  tag: BB\n", "tag line 4"),
        ("learning_rate_scale: fast", "learning_rate_scale 'fast'"),
        ("precision: float16", "precision auto float32 bfloat16 'float16'"),
        ("train: 3", "train 3"),
        ("output: [a]", "output ['a']"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(tmp_path, line, named):
    with refused(RecipeError, *named.split()):
        load_recipe(written(tmp_path, line))


def test_aliases_that_would_grow_without_end_are_refused_at_once(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    with refused(RecipeError, "mine.yaml", "*a0"):
        load_recipe(written(tmp_path, "\n".join([*lines, "train: *a11"])))


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words", "a: [", ""])
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text):
    with refused(RecipeError, "mine.yaml"):
        load_recipe(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{a: " * 3000, "YAML"),
        ("seed: !!timestamp x", "YAML"),
        ("seed: 2001-99-99", "YAML"),
        ("seed: " + "1" * 5000, "YAML"),
        ("seed: !!int ''", "YAML"),
        ("dropout: " + "1" * 400, "dropout"),
    ],
)
def test_broken_yaml_is_named_with_its_file(tmp_path, text, named):
    with refused(RecipeError, "mine.yaml", *named.split()):
        load_recipe(written(tmp_path, text))


def test_directory_or_unreadable_file_as_recipe_is_refused(tmp_path, monkeypatch):
    def closed(*_, **__):
        raise PermissionError(13, "Permission denied")

    file = written(tmp_path, "seed: 1")
    monkeypatch.setattr("pathlib.Path.read_text", closed)
    with refused(RecipeError, "mine.yaml", "Permission denied"):
        load_recipe(file)


def test_an_unknown_recipe_is_refused_with_the_nearest_and_all_others():
    with refused(RecipeError, "'cmudikt'", "'cmudict'"):
        load_recipe("cmudikt")
