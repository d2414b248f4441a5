"""Attention as one self-contained HTML page."""

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch

from vanilla_transformer.extras.inspection.pieces import Pieces
from vanilla_transformer.extras.inspection.recording import Attention, InspectionError, Kind

# Weights on a page, 2 bytes each: with more, a browser takes seconds to show it.
LARGEST_PAGE = 12_000_000
_FULL = 65535


def attention_page(attentions: Sequence[Attention], title: str = "Attention") -> str:
    """Returns the page: attention by sentence, kind, layer and head, as lines between words, a heat map or all heads.

    Raises:
        InspectionError: There are more weights than a browser can show.
    """
    numbers = sum(weights.numel() for one in attentions for weights in one.weights.values())
    if numbers > LARGEST_PAGE:
        raise InspectionError(
            f"A page of {numbers:,} attention weights is more than a browser shows ({LARGEST_PAGE:,}): "
            "give shorter or fewer sentences."
        )
    data = json.dumps({"title": title, "sentences": [_sentence(one) for one in attentions]}, ensure_ascii=False)
    template = files("vanilla_transformer.extras.inspection").joinpath("page.html").read_text(encoding="utf-8")
    # Keeps text from ending the element that holds it.
    return template.replace("{{data}}", data.replace("<", "\\u003c"))


def _sentence(attention: Attention) -> dict[str, Any]:
    return {
        "text": " ".join((attention.source or attention.read).words),
        "sides": {
            "source": _side(attention.source),
            "read": _side(attention.read),
            "written": _side(attention.written),
        },
        "weights": {kind: _packed(weights) for kind, weights in attention.weights.items()},
        "between": {kind: _between(kind) for kind in attention.weights},
        "names": {kind: attention.sides(kind) for kind in attention.weights},
    }


def _side(pieces: Pieces) -> dict[str, Any]:
    words = pieces.as_words()
    word_of = pieces.word_of if words is not pieces else tuple(range(len(pieces)))
    return {"pieces": pieces.texts, "words": words.texts, "wordOf": word_of}


def _between(kind: Kind) -> list[str]:
    """Names the side that attends and the side that is attended to."""
    return {"encoder": ["source", "source"], "decoder": ["read", "read"], "cross": ["written", "source"]}[kind]


def _packed(weights_NHQL: torch.Tensor) -> dict[str, Any]:
    """Packs weights as multiples of 1/65,535 in base64, a fifth of the size of decimal text."""
    shares = (weights_NHQL * _FULL).round().to(torch.int32).numpy().astype("<u2")
    return {"shape": list(weights_NHQL.shape), "numbers": base64.b64encode(shares.tobytes()).decode("ascii")}
