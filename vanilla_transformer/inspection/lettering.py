"""Letters of every script in pictures: finds installed fonts that have them, or shows their code points."""

import re
import warnings
from collections.abc import Iterable
from functools import cache

# The font that matplotlib ships with.
_OWN = "DejaVu Sans"


def lettering(texts: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Returns font families in the order in which matplotlib tries them, and each text as matplotlib draws it.

    A character that no font has becomes its code point, `[1F916]`; a dollar sign begins no formula.
    """
    printable = {text: "".join(c if c.isprintable() else "·" for c in text) for text in texts}
    families = [_OWN]
    missing = set(map(ord, "".join(printable.values()))) - _characters(_OWN)
    while missing:
        best = max(_installed(), key=lambda family: len(missing & _characters(family)), default=_OWN)
        if not missing & _characters(best):
            break
        families.append(best)
        missing -= _characters(best)
    if missing:
        listed = "".join(map(chr, sorted(missing)))
        warnings.warn(f"No font on this machine has {listed}: they are shown by their numbers.", stacklevel=3)
        unknown = re.compile(f"[{re.escape(listed)}]+")
        printable = {text: unknown.sub(_numbers, shown) for text, shown in printable.items()}
    return families, {text: shown.replace("$", r"\$") for text, shown in printable.items()}


def _numbers(run: re.Match[str]) -> str:
    return "[" + " ".join(f"{ord(character):X}" for character in run[0]) + "]"


@cache
def _installed() -> tuple[str, ...]:
    """Lists the families of upright regular fonts, those without serifs first."""
    from matplotlib.font_manager import fontManager

    families = {font.name for font in fontManager.ttflist if font.style == "normal" and font.weight in (400, "normal")}
    return tuple(sorted(families, key=lambda name: ("Sans" not in name, name)))


@cache
def _characters(family: str) -> frozenset[int]:
    """Returns the code points for which a family has outlines; fonts of coloured bitmaps have none."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        font = get_font(findfont(FontProperties(family=family), fallback_to_default=False))
    except (RuntimeError, ValueError, OSError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
