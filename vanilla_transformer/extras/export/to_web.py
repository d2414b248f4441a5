"""Export of our models to the browser: a page on any static host, on which `translate.onnx` translates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import RepoCard

from vanilla_transformer.extras.demo.push_space import push_space
from vanilla_transformer.extras.export.browser_tokenizer import tokenizer_config, tokenizer_parts
from vanilla_transformer.extras.export.onnx_defaults import Defaults
from vanilla_transformer.extras.export.to_onnx import refuse_uncomputable, write_graph
from vanilla_transformer.extras.export.web_page import check_programs, write_json, write_page
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.reporting.model_card import CARD

# The graph for each type of weights, by the page's name for the type.
GRAPHS = {"q8": "translate_int8.onnx", "fp32": "translate.onnx"}


def export_web(
    model: Any, tokenizer: Any, output: Path, vendor: Path | None = None, hosts: Sequence[str] = ()
) -> list[str]:
    """Writes a folder with a page, the graph in 8 bits and float32, and the tokenizer, for any host of static files.

    Args:
        vendor: A folder of npm packages with ONNX Runtime Web and tokenizers.js. The files that the page needs are
            copied, so that it contacts no other host. Without it the page loads them from a content delivery network,
            by version and checksum.
        hosts: Other hosts to which the page may be redirected, where its own host keeps large files elsewhere.

    Returns:
        Remarks for the user.

    Raises:
        ConversionError: The graph cannot compute the model, tokenizers.js cannot read its tokenizer, or `vendor` lacks
            a file.
        ValueError: The model decodes with settings that the graph does not follow.
    """
    refuse_uncomputable(model)
    defaults = Defaults.of(model)
    tokenizer = plain_text(tokenizer)
    parts = tokenizer_parts(tokenizer)
    programs = check_programs(vendor)
    output.mkdir(parents=True, exist_ok=True)
    write_graph(model, defaults, output / GRAPHS["fp32"])
    write_graph(model, defaults, output / GRAPHS["q8"], "int8")
    write_json(output / "tokenizer.json", parts)
    write_json(output / "tokenizer_config.json", tokenizer_config(tokenizer, parts))
    sizes = {dtype: (output / name).stat().st_size for dtype, name in GRAPHS.items()}
    name = Path(model.name_or_path).name or output.resolve().name
    write_page(output, name, sizes, defaults.max_source_length, programs, hosts)
    if isinstance(tokenizer, VanillaTransformerTokenizer):
        return []
    return [
        f"The tokenizer is a {type(tokenizer).__name__}: tokenizers.js is known to split alike only for this "
        "package's own tokenizer, so compare some translations."
    ]


def push_web(folder: Path, model: Path, name: str, *, private: bool = False, message: str | None = None) -> str:
    """Pushes an exported folder as a static Space with the model's name, or replaces the one before; returns its URL.

    Args:
        folder: The folder that `export_web` has written.
        model: The directory of the pushed model.
        name: The model's name on the Hub, ORG/NAME.

    Raises:
        PushError: Another Space has that name, or the Hub refuses the push.
    """
    card: Any = RepoCard.load(folder / CARD)
    card.data.title, card.data.models = name.rpartition("/")[2], [name]
    card.data.license = RepoCard.load(model / CARD, ignore_metadata_errors=True).data.get("license")
    card.save(folder / CARD)
    return push_space(folder, name, private=private, message=message)
