"""Limits of settings: one check for each, shared by commands and functions."""

import math
from numbers import Integral, Real
from typing import Any

from vanilla_transformer.errors import RecipeError


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Refuses a value that is not a whole number within limits; None stands for a setting not given.

    Raises:
        RecipeError: Gives the allowed values.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RecipeError(f"{name} must be a whole number, not {value!r}.")
    if least is not None and int(value) < least:
        raise RecipeError(f"{name} must be at least {least:,}, not {value}.")
    if most is not None and int(value) > most:
        raise RecipeError(f"{name} must be at most {most:,}, not {value}.")


def check_number(name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False) -> None:
    """Refuses a value that is not a finite number within limits, or above the lower one; None stands for not given.

    Raises:
        RecipeError: Gives the allowed values.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RecipeError(f"{name} must be a number, not {value!r}.")
    number = float(value)
    if math.isfinite(number) and least <= number <= most and not (above and number == least):
        return
    lower = f"above {least:g}" if above else f"at least {least:g}"
    upper = f" and at most {most:g}" if math.isfinite(most) else "" if math.isfinite(number) else " and finite"
    raise RecipeError(f"{name} must be {lower}{upper}, not {value}.")


def refuse_one_text(name: str, texts: Any) -> None:
    """Refuses a single text instead of several, which would be read as its letters.

    Raises:
        RecipeError: Says what to give.
    """
    if isinstance(texts, str | bytes):
        raise RecipeError(f"{name} must be several texts, not one: give [{texts[:20]!r}].")
