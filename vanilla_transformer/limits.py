"""Limits of settings: one check for each, shared by commands and functions."""

import math
from numbers import Integral, Real

from vanilla_transformer.errors import RecipeError


def check_number(name: str, value: object, least: float, most: float = math.inf, *, whole: bool = True) -> None:
    """Refuses a value that is not a number within limits, and whole unless said; None stands for one not given.

    Raises:
        RecipeError: Gives the allowed values.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise RecipeError(f"{name} must be a {'whole number' if whole else 'number'}, not {value!r}.")
    if not least <= float(value) <= most:
        limits = f"at least {least:,}" + ("" if most == math.inf else f" and at most {most:,}")
        raise RecipeError(f"{name} must be {limits}, not {value}.")


def refuse_one_text(name: str, texts: object) -> None:
    """Refuses a single text instead of several, which would be read as its letters.

    Raises:
        RecipeError: Says what to give.
    """
    if isinstance(texts, str | bytes):
        raise RecipeError(f"{name} must be several texts, not one: give [{texts[:20]!r}].")
