"""The folder of a Space that shows a model: the page, this package, and its requirements."""

import re
import shutil
import sys
from importlib.metadata import requires, version
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

import vanilla_transformer
from vanilla_transformer.extras.demo.push_space import SPACE_TAG, push_space

# The version with which the page is tested.
GRADIO = "6.31.0"
APP = '''"""The page of the model, by the package that lies beside this file."""

from vanilla_transformer.extras.demo.live_page import build_page, open_page
from vanilla_transformer.extras.demo.shown import ShownModel

page = build_page([ShownModel.load("{model}")])
open_page(page)
page.block_thread()
'''
README = """---
{head}---

Try [{model}](https://huggingface.co/{model}), a model of vanilla_transformer. "Use via API" says how programs ask it.
The same page on your own machine: `vanilla-transformer demo {model}`.
"""
# Requirements of some models beyond the package's own, by a file that such models have.
_NEEDS = {
    "*.spm": "sentencepiece",
    "*.bpe.model": "sentencepiece",
    "vocab-src.json": "sacremoses",
    "modeling_vanilla_transformer_encoder.py": "datasets",
    "modeling_vanilla_transformer_decoder.py": "datasets",
}


def push_demo(directory: Path, model: str, *, private: bool = False, message: str | None = None) -> str:
    """Makes a Space with the model's name that shows it, or replaces the previous one; returns its URL.

    Args:
        directory: The directory of the pushed model.
        model: The model's name on the Hub, ORG/NAME.

    Raises:
        PushError: Another Space has that name, or the Hub refuses the push.
    """
    with TemporaryDirectory(prefix="vanilla-transformer-space-", ignore_cleanup_errors=True) as folder:
        write_space(Path(folder), directory, model)
        return push_space(Path(folder), model, private=private, message=message)


def write_space(folder: Path, directory: Path, model: str) -> None:
    """Writes the files of a model's Space."""
    head = {
        "title": model.rpartition("/")[2],
        "emoji": "💬",
        "colorFrom": "indigo",
        "colorTo": "blue",
        "sdk": "gradio",
        "sdk_version": GRADIO,
        "python_version": f"{sys.version_info.major}.{sys.version_info.minor}",
        "app_file": "app.py",
        "license": "apache-2.0",
        "models": [model],
        "tags": [SPACE_TAG],
    }
    text = yaml.safe_dump(head, allow_unicode=True, sort_keys=False)
    (folder / "README.md").write_text(README.format(head=text, model=model), encoding="utf-8")
    (folder / "app.py").write_text(APP.format(model=model), encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements(directory)))
    # A copy of the package needs no package index, and the page always has the version that made it.
    package = Path(vanilla_transformer.__file__).parent
    unused = shutil.ignore_patterns("__pycache__", "explore", "export", "recipes")
    shutil.copytree(package, folder / package.name, ignore=unused)


def requirements(directory: Path) -> list[str]:
    """Returns the requirements of a model's page, in the versions installed here."""
    own = [one for one in requires("vanilla-transformer") or () if "extra ==" not in one]
    names = [re.match(r"[\w.-]+", one)[0] for one in own]  # type: ignore[index]
    names += [package for pattern, package in _NEEDS.items() if any(directory.glob(pattern))]
    # A build for one device, such as 2.13.0+cpu, is only on an index of its own.
    pins = {f"{name}=={version(name).partition('+')[0]}" for name in names}
    return sorted({*pins, f"gradio=={GRADIO}"}, key=str.lower)
