"""How corpora are named: files or a dataset, and beside them a weight, columns and whether to stream."""

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vanilla_transformer.data.lines import CorpusError

BETWEEN_CORPORA = "+"
SETTINGS = ("weight", "source_column", "target_column", "streaming")
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True)
class CorpusSource:
    """One corpus as a recipe names it; `parts` are what `open_corpus` and `read_corpus` take as their source."""

    parts: tuple[str, ...]
    weight: float | None = None
    source_column: str | None = None
    target_column: str | None = None
    streaming: bool = False

    @property
    def columns(self) -> tuple[str | None, str | None]:
        """Names of the two columns, None where they are not named."""
        return self.source_column, self.target_column

    def __str__(self) -> str:
        return " and ".join(self.parts)


def parse_sources(words: Sequence[str]) -> list[CorpusSource]:
    """Read the corpora in a list of words: ``+`` stands between two, and ``name=value`` is about the one it is with.

    ``news.en news.de weight=0.7 + europarl.parquet weight=0.3 source_column=en target_column=de`` are two corpora. A
    file that exists is taken for itself, and so is a word that is like none of `SETTINGS`.

    Raises:
        CorpusError: A setting is unknown, or has no such value, or only some of the corpora have a weight.
    """
    corpora: list[list[str]] = [[]]
    for word in words:
        if word == BETWEEN_CORPORA:
            corpora.append([])
        else:
            corpora[-1].append(word)
    sources = [_parse_one(corpus) for corpus in corpora] if words else []
    if 0 < sum(source.weight is None for source in sources) < len(sources):
        without = next(source for source in sources if source.weight is None)
        raise CorpusError(f"{without} has no weight and others have one: give a weight to each corpus or to none")
    return sources


def parse_source(words: Sequence[str]) -> CorpusSource:
    """Read the one corpus that there may be where nothing is mixed; see `parse_sources`."""
    sources = parse_sources(words)
    if not sources:
        raise CorpusError("there is no corpus")
    if len(sources) > 1 or sources[0].weight is not None:
        raise CorpusError("this is one corpus, without a weight: only what is learned from can be mixed")
    return sources[0]


def as_words(corpora: Any) -> Any:
    """Return the words for corpora that YAML gives as mappings, and anything else as it is.

    A mapping has the key ``corpus``, a name or a list of two files, and may have those of `SETTINGS`.
    """
    listed = [corpora] if isinstance(corpora, Mapping) else corpora
    if not isinstance(listed, list | tuple) or all(isinstance(corpus, str) for corpus in listed):
        return corpora
    words: list[str] = []
    for corpus in listed:
        words += [BETWEEN_CORPORA, *_words_of(corpus)]
    return words[1:]


def _words_of(corpus: Any) -> list[str]:
    settings = dict(corpus) if isinstance(corpus, Mapping) else {"corpus": corpus}
    parts = settings.pop("corpus", None)
    parts = [parts] if isinstance(parts, str) else parts
    if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, str) for part in parts):
        raise CorpusError(f"each corpus of several needs `corpus: NAME` or `corpus: [FILE, FILE]`, not {corpus!r}")
    for name in settings:
        _check_setting(str(name))
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in settings.items()}
    return [*parts, *(f"{name}={value}" for name, value in values.items())]


def _parse_one(words: list[str]) -> CorpusSource:
    parts, settings = [], {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_")
        if equals and _nearest(name) and not os.path.exists(word):
            settings[_check_setting(name)] = value
        else:
            parts.append(word)
    if not parts:
        raise CorpusError(f"there is no corpus {'with ' + ' '.join(words) if words else 'on one side of a +'}")
    where = " and ".join(parts)
    return CorpusSource(
        tuple(parts),
        weight=_weight(settings["weight"], where) if "weight" in settings else None,
        source_column=settings.get("source_column"),
        target_column=settings.get("target_column"),
        streaming=_truth(settings.get("streaming", "false"), where),
    )


def _check_setting(name: str) -> str:
    if name not in SETTINGS:
        near = _nearest(name)
        hint = f", did you mean {near!r}?" if near else "."
        raise CorpusError(f"a corpus has no setting {name!r}{hint} There are {', '.join(SETTINGS)}")
    return name


def _nearest(name: str) -> str | None:
    return next(iter(difflib.get_close_matches(name, SETTINGS, n=1)), None)


def _weight(text: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise CorpusError(f"{where}: a weight is a number greater than 0, not {text!r}")
    return weight


def _truth(text: str, where: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise CorpusError(f"{where}: streaming is true or false, not {text!r}")
    return _TRUTHS[text.lower()]
