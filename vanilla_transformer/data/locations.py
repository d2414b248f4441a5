"""Locations of corpora: the form given by their words, before anything is read."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from vanilla_transformer.compression import SUFFIXES, without_suffix
from vanilla_transformer.data.columns import PAIRS, TextForm
from vanilla_transformer.data.sources import CorpusSpec
from vanilla_transformer.data.tables import TABLE_READERS, Wanted
from vanilla_transformer.data.text_lines import CorpusError

FILE_SUFFIXES = (*TABLE_READERS, ".parquet")
BUILT_IN = "cmudict"
# Three-letter endings of corpus file names that are not languages.
NOT_LANGUAGES = {"bpe", "dev", "hyp", "out", "raw", "ref", "src", "tgt", "tok", "trg", "txt", "val"}


@dataclass(frozen=True)
class CorpusLocation:
    """The location of a corpus.

    `kind` is ``lines`` (a file for each column), ``table`` or ``conll`` (one file), ``dataset`` (for `datasets`) or
    ``built-in``.
    """

    kind: str
    paths: tuple[str, ...] = ()
    config: str | None = None
    split: str | None = None
    wanted: Wanted = (None, None)
    form: TextForm = PAIRS

    def __str__(self) -> str:
        return " and ".join(self.paths)


def locate(corpus: CorpusSpec, form: TextForm = PAIRS) -> CorpusLocation:
    """Return the location that the words for a corpus mean, for reading a form."""
    if corpus.prepared is not None:
        raise CorpusError(f"{corpus} holds tokens, which are only for training: give its text")
    location = replace(_locate(corpus, form), form=form, wanted=corpus.wanted(form))
    if form.packed and location.kind != "lines":
        raise CorpusError(f"{location}: only plain text files can be packed: leave documents out, or give its text")
    if location.kind in ("lines", "built-in") and any(location.wanted):
        raise CorpusError(f"{location} has no named columns: leave the names out")
    return location


def _locate(corpus: CorpusSpec, form: TextForm) -> CorpusLocation:
    if not form.parallel and len(corpus.parts) > 1:
        raise CorpusError(
            f"{corpus} are {len(corpus.parts)} sources, but {form.unit} come from one at a time; to train "
            "on several corpora, separate them with +"
        )
    if form.tagged:
        return _locate_conll(corpus.parts[0])
    if len(corpus.parts) == 2:
        if any(table_suffix(path) for path in corpus.parts):
            raise CorpusError(f"{corpus} are not two line-aligned text files: give one table at a time")
        return CorpusLocation("lines", corpus.parts)
    if len(corpus.parts) == 1:
        return _locate_one(corpus.parts[0], form)
    raise CorpusError(
        f"a corpus is two line-aligned files or one other source, not {len(corpus.parts)}; to train on "
        "several corpora, separate them with +"
    )


def _locate_conll(path: str) -> CorpusLocation:
    if not os.path.isfile(path) or table_suffix(path) in (".csv", ".jsonl", ".mrg", ".parquet"):
        problem = "is none" if os.path.exists(path) else "does not exist"
        raise CorpusError(f"words and their tags are read from files of CoNLL columns, but {path} {problem}")
    return CorpusLocation("conll", (path,))


def may_have_columns(corpus: CorpusSpec) -> bool:
    """Tell by its words whether a corpus is a table or a dataset, without checking that it exists."""
    name = corpus.parts[0]
    is_built_in = name.partition(":")[0] == BUILT_IN and not os.path.exists(name)
    return len(corpus.parts) == 1 and not is_built_in and corpus.prepared is None


def _locate_one(source: str, form: TextForm) -> CorpusLocation:
    path, parts = split_off(source)
    single = len(form.columns) == 1
    if path == BUILT_IN and len(parts) < 2 and form.parallel:
        return CorpusLocation("built-in", (path,), split=parts[0] if parts else None)
    suffix = table_suffix(path)
    if not os.path.exists(path):
        if (
            suffix
            or (single and path.endswith((".txt", *SUFFIXES)))
            or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", path)
        ):
            raise CorpusError(f"{path} does not exist")
    elif not os.path.isdir(path):
        if parts:
            raise CorpusError(f"{path} is a file, which has no split {':'.join(parts)!r}")
        if suffix in TABLE_READERS:
            return CorpusLocation("table", (path,))
        if suffix is None and single:
            return CorpusLocation("lines", (path,))
        if suffix is None:
            others = "; plain text needs two line-aligned files, one for each side" if form.parallel else ""
            raise CorpusError(f"{path} is not a table that can be read ({', '.join(FILE_SUFFIXES)}){others}")
    if len(parts) > 2:
        raise CorpusError(f"{source}: write NAME, NAME:SPLIT or NAME:CONFIG:SPLIT")
    config = parts[0] if len(parts) == 2 else None
    return CorpusLocation("dataset", (path,), config=config, split=parts[-1] if parts else None)


def split_off(source: str) -> tuple[str, list[str]]:
    """Split NAME:CONFIG:SPLIT; an existing path takes precedence over colons."""
    if os.path.exists(source):
        return source, []
    for parts in (1, 2):
        name, *rest = source.rsplit(":", parts)
        if len(rest) == parts and os.path.exists(name):
            return name, rest
    name, *rest = source.split(":")
    return name, rest


def table_suffix(path: str) -> str | None:
    """Return the suffix that marks a file as a table, None for other files."""
    suffix = Path(without_suffix(path)).suffix.lower()
    return suffix if suffix in FILE_SUFFIXES else None


def is_conll(path: str) -> bool:
    """Tell by its suffix whether a file has CoNLL columns."""
    return without_suffix(path).endswith((".conll", ".conllu"))


def without_suffixes(path: str) -> Path:
    """Return the path without the suffixes for a text's storage, which say nothing of its content."""
    return Path(without_suffix(path).removesuffix(".txt"))


def language(name: str) -> str | None:
    """Return the language named by a file suffix or a column (``en``, ``pt_BR``, ``deu_Latn``), if any."""
    if re.fullmatch(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*", name) and name not in NOT_LANGUAGES:
        return name
    return None
