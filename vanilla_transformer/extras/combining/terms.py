"""Terms of a glossary, which must occur in the translation of each line that contains their source terms."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LogitsProcessorList, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from vanilla_transformer.extras.combining.constrained_search import RequiredPhrases
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from vanilla_transformer.plain_text import plain_text
from vanilla_transformer.translation.lines import Translation
from vanilla_transformer.translation.translator import LineTranslator

# Words, and every other sign by itself.
_WORDS = re.compile(r"\w+|[^\w\s]")
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


class TermError(ValueError):
    """A glossary that is not valid, or that this model cannot use."""


@dataclass(frozen=True)
class Glossary:
    """Source terms and their required translations.

    Attributes:
        terms: The target term for each source term, a tuple of words.
    """

    terms: Mapping[tuple[str, ...], str]

    @classmethod
    def read(cls, path: str | Path) -> "Glossary":
        """Reads a file of rows `source term TAB target term`; empty lines are skipped.

        Raises:
            TermError: A row has another form, or contradicts an earlier row; the message names it.
            OSError: The file cannot be read.
        """
        terms: dict[tuple[str, ...], str] = {}
        try:
            rows = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise TermError(f"{path} is not valid UTF-8: {error.reason} at byte {error.start}.") from error
        for number, row in enumerate(rows, 1):
            if not row.strip():
                continue
            parts = [" ".join(part.split()) for part in row.split("\t")]
            if len(parts) != 2 or not all(parts):
                raise TermError(
                    f"{path}, line {number}: a row must be a source term, a tab and a target term, not {row[:60]!r}."
                )
            words, target = tuple(_WORDS.findall(parts[0])), parts[1]
            if terms.setdefault(words, target) != target:
                raise TermError(
                    f"{path}, line {number}: {parts[0]!r} has the target term {terms[words]!r} in an earlier "
                    f"row and {target!r} here: keep one."
                )
        if not terms:
            raise TermError(f"{path} has no terms: give rows of a source term, a tab and a target term.")
        return cls(terms)

    def required(self, line: str) -> list[str]:
        """Returns phrases that a line's translation must contain; of overlapping terms the first, then the longest."""
        words, found, place = _WORDS.findall(line), [], 0
        longest = max(map(len, self.terms))
        while place < len(words):
            for end in range(min(place + longest, len(words)), place, -1):
                if (target := self.terms.get(tuple(words[place:end]))) is not None:
                    found.append(target)
                    place = end - 1
                    break
            place += 1
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class TermTranslator(LineTranslator):
    """Translates lines; hypotheses for lines with terms of a glossary must contain the target terms.

    Attributes:
        glossary: The terms.
        pieces: The tokens of each target term.
        begin_within_word: Tokens that continue a word.
        end_within_word: Tokens that such a token can continue.
    """

    glossary: Glossary
    pieces: Mapping[str, tuple[int, ...]]
    begin_within_word: frozenset[int]
    end_within_word: frozenset[int]

    @classmethod
    def from_translator(cls, translator: LineTranslator, glossary: Glossary) -> "TermTranslator":
        """Takes another translator's model and settings.

        Raises:
            TermError: The model cannot write a term, or its search cannot require terms.
        """
        tokenizer = translator.tokenizer
        if isinstance(tokenizer, VanillaTransformerTokenizer) and tokenizer.detokenize("a@@ b") == "ab":
            raise TermError("Terms need a model that splits words itself, but this one expects pre-split text.")
        beams = translator.generate_kwargs.get("num_beams") or translator.model.generation_config.num_beams or 1
        if beams < 2 or translator.sampling is not None:
            raise TermError("Terms need a beam: give --num-beams 2 or more.")
        begin, end = _within_word(tokenizer)
        pieces = {term: _pieces(tokenizer, term, begin) for term in glossary.terms.values()}
        return cls(**vars(translator), glossary=glossary, pieces=pieces, begin_within_word=begin, end_within_word=end)

    def translate(self, lines: list[str], progress: Callable[[int], object] | None = None) -> list[Translation]:
        """Translates like any `LineTranslator`; lines without terms use the ordinary search."""
        with_terms = [number for number, line in enumerate(lines) if self.glossary.required(line)]
        others = sorted({*range(len(lines))} - {*with_terms})
        found: dict[int, Translation] = {}
        for numbers in filter(None, (others, with_terms)):
            some = super().translate([lines[number] for number in numbers], progress)
            found |= zip(numbers, some, strict=True)
        return [found[number] for number in range(len(lines))]

    def _arguments_of_rows(self, rows: list[list[int]], lines: list[str]) -> dict[str, Any]:
        phrases = [[self.pieces[term] for term in self.glossary.required(line)] for line in lines]
        if not any(phrases):
            return {}
        required = RequiredPhrases(phrases, self.begin_within_word, self.end_within_word)
        return {"logits_processor": LogitsProcessorList([required])}


def _pieces(tokenizer: PreTrainedTokenizerBase, term: str, begin_within_word: frozenset[int]) -> tuple[int, ...]:
    """Returns the tokens with which a term is written, wherever it stands."""
    ids: list[int] = plain_text(tokenizer)(text_target=term, add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id in ids or str(tokenizer.decode(ids)).strip() != term:
        raise TermError(f"The model's vocabulary cannot write the target term {term!r}: leave it out.")
    if ids[0] in begin_within_word:
        raise TermError(
            "Terms need a vocabulary whose pieces include the space before a word, which this one does not have."
        )
    return tuple(ids)


def _within_word(tokenizer: PreTrainedTokenizerBase) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the tokens that begin with a letter or digit, not a space or another sign, and those that end so."""
    begin, end = set(), set()
    in_bytes = isinstance(tokenizer, VanillaTransformerTokenizer)
    for piece, number in tokenizer.get_vocab().items():
        text = piece.replace("\u2581", " ")
        if in_bytes:
            # A part of a character of several bytes is taken for part of a letter.
            written = bytes(_BYTES[one] for one in piece if one in _BYTES)
            text = written.decode("utf-8", "replace").replace("\ufffd", "x")
        if number in tokenizer.all_special_ids or not text:
            continue
        if re.match(r"\w", text):
            begin.add(number)
        if re.search(r"\w$", text):
            end.add(number)
    return frozenset(begin), frozenset(end)
