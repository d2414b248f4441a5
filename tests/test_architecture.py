"""The house: who imports whom, what ships to the Hub, where the paper's sections stand."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import vanilla_transformer

PACKAGE = Path(vanilla_transformer.__file__).parent
# Each part may import those below it.
LAYERS = [
    *("cli", "demo", "explore", "inspection", "hub", "export"),
    *("training", "tasks", "evaluation", "translation", "loading", "recipe", "data", "tokenizer"),
    *("cost", "model_directory", "options"),
    *("figures", "progress", "registration", "recurrent", "import_hooks"),
    *("model", "cross_entropy", "graph", "atomic_files", "machine", "errors"),
]
_BESIDE_MODELS = {
    "configuration_vanilla_transformer",
    "generation_vanilla_transformer",
    "pipeline_vanilla_transformer",
}
SIBLINGS = {
    "modeling_vanilla_transformer": _BESIDE_MODELS,
    "modeling_vanilla_transformer_encoder": {*_BESIDE_MODELS, "modeling_vanilla_transformer"},
    "modeling_vanilla_transformer_decoder": {*_BESIDE_MODELS, "modeling_vanilla_transformer"},
}


@cache
def parsed(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, anywhere in it."""
    found = set()
    for node in parsed(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "__init__.py")


def test_imports_point_one_way():
    for path in modules():
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part not in LAYERS:
            assert part == "__main__", f"say in LAYERS where {part} stands"
            continue
        for name in imports(path):
            if name.startswith("vanilla_transformer."):
                assert name.split(".")[1] in LAYERS[LAYERS.index(part) :], f"{path} must not import {name}"


def test_nothing_but_tasks_asks_which_task_it_is():
    for path in modules():
        # These call a task one of the pipelines of transformers.
        if path.relative_to(PACKAGE).parts[0] in ("tasks", "model", "recurrent", "registration.py"):
            continue
        for name in imports(path):
            assert name.removeprefix("vanilla_transformer.tasks") in (name, ""), f"{path} imports {name}"
        for node in parsed(path):
            tested = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            asked = [one for one in tested if re.fullmatch(r"(.*\.)?task(\.name)?", ast.unparse(one))]
            assert not asked, f"{path}, line {node.lineno}: {ast.unparse(node)}"
            assert getattr(node, "attr", "") != "auto_class", f"{path} asks a task for its Auto class"


def test_shipped_files_import_only_what_the_hub_can_follow():
    for path in (PACKAGE / "model").glob("*.py"):
        for imported in imports(path):
            if imported.startswith("."):
                assert imported.lstrip(".") in SIBLINGS.get(path.stem, set()) and not imported.startswith("..")
            else:
                top = imported.split(".")[0]
                assert (
                    top in ("torch", "transformers", "tokenizers", "huggingface_hub") or top in sys.stdlib_module_names
                )


MODELS = "vanilla_transformer.model"
SECTIONS = {
    "Encoder": "Section 3.1",
    "EncoderLayer": "Section 3.1",
    "Decoder": "Section 3.1",
    "DecoderLayer": "Section 3.1",
    "VanillaTransformerEncoderModel": "Section 3.1",
    "VanillaTransformerDecoderModel": "Section 3.1",
    "scaled_dot_product_attention": "Section 3.2.1, Eq. 1",
    "MultiHeadAttention": "Section 3.2.2",
    "PositionwiseFeedForward": "Section 3.3, Eq. 2",
    "LanguageModelHead": "Section 3.4",
    "PositionalEncoding": "Section 3.5",
    "Dropout": "Section 5.4",
    "Head.loss_function": "Section 5.4",
    "Stack.embed": "Sections 3.4",
}


def test_blocks_say_which_section_they_are():
    for place, section in SECTIONS.items():
        is_public = place in vanilla_transformer.__all__
        block = vanilla_transformer if is_public else import_module(f"{MODELS}.modeling_vanilla_transformer")
        for name in place.split("."):
            block = getattr(block, name)
        assert block.__doc__.startswith(section), place


def paths_in(text: str) -> list[str]:
    """Returns the paths in the repository that a text names in backquotes."""
    return re.findall(r"`((?:vanilla_transformer|scripts|tests|docs|examples)/[\w./-]*)`", text)


def test_documents_name_files_that_exist():
    for document in ("docs/architecture.md", "CONTRIBUTING.md"):
        named = paths_in((PACKAGE.parent / document).read_text(encoding="utf-8"))
        assert named and [path for path in named if not (PACKAGE.parent / path).exists()] == [], document


def test_decoding_loads_nothing_that_takes_long_and_is_of_no_use():
    for names, heavy in (
        ("Translator", {"accelerate", "onnx", "torch", "transformers"}),
        ("live_models", {"ctranslate2", "fsspec.implementations.http", "matplotlib", "onnx", "pandas", "pyarrow"}),
    ):
        code = f"import sys; from vanilla_transformer.translation import {names}; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert heavy.isdisjoint(done.stdout.split())
