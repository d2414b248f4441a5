"""The programs in examples/ run on a little text, from beginning to end."""

import importlib.util
import random
from pathlib import Path

import pytest

from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train

EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = {"one": "1", "two": "2", "three": "3", "four": "4"}
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270}


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def text(tmp_path):
    """Line-aligned files of number words and digits, and a table of the same pairs."""
    draw = random.Random(0)
    rows = [draw.choices(list(DIGITS), k=draw.randint(1, 5)) for _ in range(40)]
    pairs = [(" ".join(words), " ".join(DIGITS[word] for word in words)) for words in rows]
    (tmp_path / "text.words").write_text("".join(f"{source}\n" for source, _ in pairs))
    (tmp_path / "text.digits").write_text("".join(f"{target}\n" for _, target in pairs))
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return tmp_path


def test_all_examples_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"train_your_language_pair", "fine_tune_with_trainer"}


def test_a_model_is_trained_for_ones_own_language_pair(text, monkeypatch, capsys):
    program = example("train_your_language_pair")
    monkeypatch.setattr(program, "Recipe", lambda **fields: Recipe(**SIZES, metrics=("chrf",), **fields))
    files = [str(text / "text.words"), str(text / "text.digits")]
    program.main([*files, str(text / "model"), "--dev", *files, "--max-steps", "3", "--translate", "one two", "three"])
    assert capsys.readouterr().out.count("\n") == 2
    assert (text / "model" / "model.safetensors").is_file()


def test_a_model_is_fine_tuned_with_the_trainer_of_transformers(text, capsys):
    files = (str(text / "text.words"), str(text / "text.digits"))
    train(Recipe(train=files, output=str(text / "model"), max_steps=2, **SIZES))
    arguments = [str(text / "model"), str(text / "pairs.tsv"), str(text / "tuned"), "--max-steps", "20"]
    example("fine_tune_with_trainer").main([*arguments, "--learning-rate", "0.01"])
    words = capsys.readouterr().out.splitlines()[-1].split()
    before, after = float(words[4]), float(words[6])
    assert after < before and (text / "tuned" / "model.safetensors").is_file()
