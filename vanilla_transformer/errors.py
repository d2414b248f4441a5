"""What this package raises of its own: the message is one sentence that says what failed, where, and what to do."""

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real


class CorpusError(ValueError):
    """Text that cannot be used or scored as it is: names the file and the line, or the row, where there is one."""


class VocabularyError(ValueError):
    """The texts cannot give a vocabulary of the requested size."""


class SettingError(ValueError):
    """A setting that is unknown, has a wrong value, or does not go with another: a field of a recipe, or an option."""


class ModelError(ValueError):
    """A model that cannot be found, read, or used in the requested way."""


class RunError(OSError):
    """An output directory, checkpoint or process of a run that is damaged, in use or lost."""


class DivergenceError(ValueError):
    """Training whose loss is no longer a number."""


class PushError(OSError):
    """A model that cannot be pushed to the Hub."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name: `, did you mean 'x'?`, or nothing."""
    similar = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f", did you mean {similar[0]!r}?" if similar else ""


def check_number(name: str, value: object, minimum: float, maximum: float = math.inf, *, whole: bool = True) -> None:
    """Refuses a value that is not a number within limits, by default a whole one; None stands for one not given."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise SettingError(f"{name} must be a {'whole number' if whole else 'number'}, not {value!r}.")
    if not minimum <= float(value) <= maximum:
        limits = f"at least {minimum:,}" + ("" if maximum == math.inf else f" and at most {maximum:,}")
        raise SettingError(f"{name} must be {limits}, not {value}.")


def check_texts(name: str, texts: object) -> None:
    """Raises SettingError if `texts` are not several texts. One text would yield letters, and a table column names."""
    if isinstance(texts, str | bytes):
        raise SettingError(f"{name} must be several texts, not one: give [{texts[:20]!r}].")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise SettingError(
            f"{name} must be texts, not a {type(texts).__name__} with columns: give one of its columns."
        )
    if not hasattr(texts, "__iter__") and not hasattr(texts, "__getitem__"):
        raise SettingError(f"{name} must be several texts, not {texts!r}.")
