"""The pages of the documentation: their cells run, their commands are understood, their links lead somewhere."""

import itertools
import re
import shlex
import shutil
from pathlib import Path

import matplotlib.pyplot
import pytest

import vanilla_transformer
from vanilla_transformer.cli import program
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.run import train

ROOT = Path(__file__).parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WORDS = {"telephone": "T EH L AH F OW N", "thoughtful": "TH AO T F AH L", "transformer": "T R AE N S F AO R M ER"}


def cells(page):
    return CELL.findall(page.read_text("utf-8"))


def named(page):
    return str(page.relative_to(ROOT))


def commands(page):
    """Every call of the program in a page's blocks, without what only a shell understands."""
    lines = "".join(BLOCK.findall(page.read_text("utf-8"))).replace("\\\n", " ").splitlines()
    for line in lines:
        for part in line.split("|"):
            words = shlex.split(part, comments=True)
            if words and words[0].endswith("vanilla-transformer"):
                yield list(itertools.takewhile(lambda word: word[:1] not in ("<", ">"), words[1:]))


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """A model where the pages look for the quickstart's, of a few words and steps."""
    directory = tmp_path_factory.mktemp("docs")
    text = directory / "words.tsv"
    text.write_text("".join(f"{word}\t{phonemes}\n" for word, phonemes in WORDS.items()))
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 280}
    model = directory / "models" / "cmudict-quickstart"
    train(Recipe.of(train=(str(text),), output=str(model), max_steps=2, **sizes))
    shutil.copytree(DOCS, directory / "docs", ignore=shutil.ignore_patterns("_build"))
    return directory


@pytest.mark.parametrize("page", [page for page in PAGES if cells(page)], ids=named)
def test_the_cells_of_a_page_run(page, quickstart, monkeypatch):
    monkeypatch.chdir((quickstart / page.relative_to(ROOT)).parent)
    monkeypatch.syspath_prepend(Path.cwd())  # As a notebook's kernel does.
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells(page), 1):
        python = "".join(line for line in cell.splitlines(keepends=True) if not line.startswith("%"))
        exec(compile(python, f"{page.name}, cell {number}", "exec"), names)
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("page", [page for page in [*PAGES, README] if list(commands(page))], ids=named)
def test_the_program_understands_the_commands_of_a_page(page, tmp_path, monkeypatch):
    """Recipes that a command names as `my-recipe.yaml` are there; nothing is run."""
    monkeypatch.chdir(tmp_path)
    Path("my-recipe.yaml").write_text("max_steps: 1\n")
    for words in commands(page):
        assert program.parse(words) is not None, words


def test_every_public_name_and_command_stands_in_the_reference():
    python = (DOCS / "reference" / "python.md").read_text("utf-8")
    assert not [name for name in vanilla_transformer.__all__ if f"vanilla_transformer.{name}\n" not in python]
    line = (DOCS / "reference" / "command-line.md").read_text("utf-8")
    assert not [name for name in program.COMMANDS if f"\n## {name}\n" not in line]


def test_the_site_is_built_without_a_warning(site):
    """Sphinx warns of links that lead nowhere and of pages in no table of contents; the tests above run the cells."""
    assert "<math" in (site / "paper" / "3.2-attention.html").read_text("utf-8")


def test_what_the_readme_links_to_is_there():
    for link in re.findall(r"\]\(([^)#:]+)\)", README.read_text("utf-8")):
        assert (ROOT / link).exists(), link
