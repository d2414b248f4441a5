"""Limits of settings: one check for each, shared by commands and functions."""

import math
from numbers import Integral, Real
from typing import Any


class SettingError(ValueError):
    """A setting that makes no sense: its name, and what it must be."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name, self.reason = name, reason


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Refuses what is no whole number within limits; None is for a setting that is not given.

    Raises:
        SettingError: Says what it must be.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(name, f"must be a whole number, not {value!r}.")
    if least is not None and int(value) < least:
        raise SettingError(name, f"must be at least {least:,}, not {value}.")
    if most is not None and int(value) > most:
        raise SettingError(name, f"must be at most {most:,}, not {value}.")


def check_number(name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False) -> None:
    """Refuses what is no finite number within limits, or above the lower one; None is for a setting not given.

    Raises:
        SettingError: Says what it must be.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(name, f"must be a number, not {value!r}.")
    number = float(value)
    if math.isfinite(number) and least <= number <= most and not (above and number == least):
        return
    lower = f"above {least:g}" if above else f"at least {least:g}"
    upper = f" and at most {most:g}" if math.isfinite(most) else "" if math.isfinite(number) else " and finite"
    raise SettingError(name, f"must be {lower}{upper}, not {value}.")


def refuse_one_text(name: str, texts: Any) -> None:
    """Refuses one text instead of several, which would be taken for its letters.

    Raises:
        SettingError: Says what to give.
    """
    if isinstance(texts, str | bytes):
        raise SettingError(name, f"must be several texts, not one: give [{texts[:20]!r}].")
