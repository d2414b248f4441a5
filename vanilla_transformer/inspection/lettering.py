"""Fonts for letters of every script in pictures."""

from collections.abc import Iterable
from functools import cache

# The font that matplotlib ships with.
_OWN = "DejaVu Sans"


def families_for(texts: Iterable[str]) -> list[str]:
    """Returns installed font families that have the letters of the texts, in the order in which matplotlib tries them.

    Of a letter that no font has, matplotlib warns.
    """
    families, missing = [_OWN], set(map(ord, "".join(texts))) - _characters(_OWN)
    while missing:
        best = max(_installed(), key=lambda family: len(missing & _characters(family)), default=_OWN)
        if not missing & _characters(best):
            break
        families.append(best)
        missing -= _characters(best)
    return families


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
