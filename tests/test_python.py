"""The package as a user of Python meets it: completion, help, types, training and scoring in one call."""

import os
import pydoc
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from refusals import refused

import vanilla_transformer
from vanilla_transformer import evaluate, train
from vanilla_transformer.cli import main
from vanilla_transformer.errors import RecipeError

PACKAGE = Path(vanilla_transformer.__file__).parent
SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 270}
TEN_LINES = """
from pathlib import Path
from vanilla_transformer import Recipe, VanillaTransformerConfig, evaluate, load_recipe, train

recipe: Recipe = load_recipe("cmudict")
run = train(recipe, max_steps=300, output="my-model")
where: Path = run.directory
wer: float = run.scores["test"]["wer"]
scores = evaluate(run, ("test.en", "test.de")).scores
names: list[str] = [score.name for score in scores]
config = VanillaTransformerConfig.from_preset("base")
wrong: int = run.directory
"""
WITHOUT_EXTRAS = """
import io, pydoc, sys
for name in ("accelerate", "datasets", "evaluate", "matplotlib", "rapidfuzz", "sacrebleu", "gradio", "onnx"):
    sys.modules[name] = None
import vanilla_transformer
assert "train" not in dir(vanilla_transformer) and "VanillaTransformerModel" in dir(vanilla_transformer)
pydoc.Helper(output=io.StringIO()).help(vanilla_transformer)
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


def test_dir_of_the_room_inspection_shows_its_names_alone():
    inspection = vanilla_transformer.inspection
    assert [name for name in dir(inspection) if name[0] != "_"] == sorted(inspection.__all__)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_package_is_an_attribute_without_being_imported(name, monkeypatch):
    monkeypatch.delattr(vanilla_transformer, name, raising=False)
    assert getattr(vanilla_transformer, name) is import_module(f"vanilla_transformer.{name}")


def test_help_shows_the_example_and_the_classes():
    page = pydoc.render_doc(vanilla_transformer, renderer=pydoc.plaintext)
    assert 'train(train=("corpus.en", "corpus.de")' in page
    assert "class VanillaTransformerForConditionalGeneration" in page


@pytest.mark.parametrize("family", ["VanillaTransformer", "RecurrentEncoderDecoder"])
def test_help_of_generate_names_its_defaults(family):
    generate = getattr(vanilla_transformer, f"{family}ForConditionalGeneration").generate
    assert "beam 4" in pydoc.render_doc(generate, renderer=pydoc.plaintext)


def test_help_needs_no_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_engine_can_be_imported_first():
    done = subprocess.run([sys.executable, "-c", "import vanilla_transformer.engine"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_training_and_scoring_do_what_the_commands_do(pairs, capsys):
    sizes = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = [
        "train",
        "--train",
        *pairs,
        "--dev",
        *pairs,
        "--output",
        "by-command",
        "--max-steps",
        "3",
        "--processes",
        "1",
    ]
    assert main([*words, *sizes]) == 0
    run = train(train=pairs, dev=pairs, output="by-call", max_steps=3, **SIZES)
    assert (run / "model.safetensors").read_bytes() == Path("by-command", "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["evaluate", "by-command", "--data", *pairs]) == 0
    scores = evaluate(run, pairs).scores
    assert capsys.readouterr().out.splitlines()[: len(scores)] == list(map(str, scores))
    assert run.scores["dev"] == {score.name: pytest.approx(score.value) for score in scores}


def test_a_recipe_is_named_and_changed_in_one_call_and_names_its_directory(pairs):
    Path("mine.yaml").write_text("train: [train.en, train.de]\nmax_steps: 500\n")
    run = train("mine.yaml", max_steps=1, **SIZES)
    assert run.directory == Path("mine") and run.summary["steps"] == 1
    with refused(RecipeError, "'max_step'", "'max_steps'"):
        train("mine.yaml", max_step=1)
    with refused(RecipeError, "processes is 2"):
        train("mine.yaml", processes=2)
    with refused(RecipeError, "multi30k-en-de"):
        train("multi30k-en-de")


def test_a_run_is_a_path_and_a_notebook_shows_its_scores_and_curves(pairs):
    run = train(train=pairs, dev=pairs, output="a & b", max_steps=2, **SIZES)
    assert os.fspath(run) == str(run) == "a & b" and "chrf" in repr(run)
    assert run._repr_png_().startswith(b"\x89PNG")
    shown = run._repr_html_()
    assert "a &amp; b" in shown and f"{run.scores['dev']['chrf']:.2f}" in shown and "data:image/png;base64," in shown


def checked(command, tmp_path):
    """Returns the report of a type checker on a user's program whose last line is wrong."""
    program = tmp_path / "program.py"
    program.write_text(TEN_LINES)
    # The package as pip installs it; of the libraries beside it nothing is asked.
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "vanilla_transformer").symlink_to(PACKAGE)
    return subprocess.run(
        [*command, str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )


def test_mypy_checks_what_a_user_writes(tmp_path):
    pytest.importorskip("mypy")
    libraries = "torch", "transformers", "datasets", "accelerate", "numpy", "pyarrow", "huggingface_hub", "tokenizers"
    skipped = ",".join(f"{name}.*" for name in libraries)
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nignore_missing_imports = true\n[mypy-{skipped}]\nfollow_imports = skip\n"
    )
    done = checked([sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent"], tmp_path)
    assert done.stdout.count("error:") == 1 and "program.py:12: error: Incompatible types" in done.stdout, done.stdout


def test_pyright_checks_what_a_user_writes(tmp_path):
    program = shutil.which("pyright") or shutil.which("basedpyright")
    if program is None:
        pytest.skip("neither pyright nor basedpyright is installed: they bring a whole Node.js")
    done = checked([program, "--level", "error", "--pythonpath", sys.executable], tmp_path)
    assert done.stdout.count(" error: ") == 1 and ":12:" in done.stdout, done.stdout
