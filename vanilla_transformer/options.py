"""Types of settings, each with its limits: the same in Python, in YAML and on the command line.

A type is `tyro`'s: it reads words, recognises values, and describes itself in the help and in errors.
"""

import os.path
from typing import Annotated, Any, get_args

from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from vanilla_transformer.graph.settings import MAX_BEAMS, MAX_LENGTH, MAX_LENGTH_PENALTY

# Python counts no further than a machine word, and no run comes as far as this.
MAX = 10**15
Spec = PrimitiveConstructorSpec[Any]


def _known_default(default: str) -> str:
    """Returns the default for the help; the help itself explains one that is chosen later."""
    return "" if default in ("None", "") else f"(default: {default})"


HINT = arg(help_behavior_hint=_known_default)


def number(kind: type[int] | type[float], minimum: float, below: float = MAX, *, above: bool = False) -> Spec:
    """Returns the type of a number of that kind, or None: at least `minimum`, or above it, and below `below`."""
    words = f"{minimum}{'<' if above else '<='}{kind.__name__.upper()}" + (f"<{below}" if below < MAX else "")

    def is_instance(value: object) -> bool:
        return value is None or (type(value) is kind and minimum <= value < below and not (above and value == minimum))

    def read(given: list[str]) -> Any:
        value: Any
        try:
            value = None if given == ["None"] else kind(given[0])
        except ValueError:
            value = given[0]
        if not is_instance(value):
            raise ValueError(f"must be {words}, not {given[0]!r}")
        return value

    return PrimitiveConstructorSpec(1, words, read, is_instance, lambda value: [str(value)])


def _read_place(given: list[str]) -> str | None:
    if "://" in given[0]:
        raise ValueError(f"must be a directory of this machine, or a name on the Hub, not {given[0]!r}")
    return None if given == ["None"] else os.path.expanduser(given[0])


def _is_place(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.startswith("~") and "://" not in value)


def _are_texts(value: object) -> bool:
    return value is None or (isinstance(value, tuple) and all(isinstance(text, str) for text in value))


_COUNT = number(int, 1)
_SHARE = number(float, 0, 1)
_POSITIVE = number(float, 0, above=True)
_TEXTS = PrimitiveConstructorSpec("*", "[TEXT [TEXT ...]]", tuple, _are_texts, lambda value: list(value or ()))

Count = Annotated[int, _COUNT, HINT]
OptionalCount = Annotated[int | None, _COUNT, HINT]
Share = Annotated[float, _SHARE, HINT]
OptionalShare = Annotated[float | None, _SHARE, HINT]
Positive = Annotated[float, _POSITIVE, HINT]
OptionalPositive = Annotated[float | None, _POSITIVE, HINT]
OptionalNumber = Annotated[float | None, number(float, 0), HINT]
OptionalBeams = Annotated[int | None, number(int, 1, MAX_BEAMS + 1), HINT]
OptionalLength = Annotated[int | None, number(int, 0, MAX_LENGTH + 1), HINT]
OptionalPenalty = Annotated[float | None, number(float, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY), HINT]
OptionalText = Annotated[str | None, arg(metavar="TEXT", help_behavior_hint=_known_default)]
OptionalPlace = Annotated[str | None, Spec(1, "DIRECTORY", _read_place, _is_place, lambda value: [str(value)]), HINT]
Texts = Annotated[tuple[str, ...], _TEXTS, HINT]
OptionalTexts = Annotated[tuple[str, ...] | None, _TEXTS, HINT]


def one_of(names: Any) -> Any:
    """Returns how the help shows a setting that has one of some names; `names` is their `Literal`."""
    return arg(metavar=f"{{{','.join(get_args(names))}}}", help_behavior_hint=_known_default)
