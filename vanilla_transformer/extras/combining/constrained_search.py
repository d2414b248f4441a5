"""Beam search for hypotheses that contain required phrases: dynamic beam allocation (Post and Vilar 2018).

A hypothesis competes only with those that have as much of the phrases, so that one with more is not lost to a
likelier one; a hypothesis ends when it has them all. Shapes in names as in `engine.search`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor

from vanilla_transformer.engine.search import BeamSearch, Candidates, Hypotheses, best_continuations

Phrases = Sequence[tuple[int, ...]]


class RequiredPhrases(LogitsProcessor):
    """Makes each translation contain some phrases, as whole words, wherever they fit best.

    Pass it to `generate` as one of its `logits_processor`; it needs a beam, and the engine.

    Args:
        phrases: For each sentence the tokens of its required phrases; the first of each always begins a word.
        begin_within_word: Tokens that continue a word.
        end_within_word: Tokens that such a token can continue.
    """

    def __init__(
        self, phrases: Sequence[Phrases], begin_within_word: frozenset[int], end_within_word: frozenset[int]
    ) -> None:
        self.phrases, self.begin_within_word, self.end_within_word = phrases, begin_within_word, end_within_word
        self.beam_search = partial(ConstrainedBeamSearch, self)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Refuses the library's search, which ignores required phrases.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "Required phrases need a beam of this package's own search: give num_beams of 2 or more, and no "
            "setting that only the library's search supports."
        )


class _State(NamedTuple):
    """The part of a sentence's phrases that a hypothesis contains.

    Attributes:
        met: The numbers of the phrases that it contains.
        newest: The phrases among them that its last token has ended; they are met only if their last word ends there.
        begun: Numbers of phrases, each with how many of its tokens stand at the end of the hypothesis.
    """

    met: frozenset[int]
    newest: frozenset[int]
    begun: tuple[tuple[int, int], ...]


class ConstrainedBeamSearch(BeamSearch):
    """Finds the best hypotheses of each sentence that contain its phrases; other arguments are those of `BeamSearch`.

    Where fewer than W can be found, the last one fills the missing places.

    Args:
        required: The phrases.

    Raises:
        ValueError: A sentence's phrases are longer than its translation may be.
    """

    def __init__(
        self, required: RequiredPhrases, decoding: Any, prompts_NP: torch.Tensor, width: int, *arguments: Any
    ) -> None:
        # Adds two hypotheses for each token of the phrases: with fewer, hypotheses that have not begun a phrase would
        # soon be crowded out by those that have.
        width += 2 * max(sum(map(len, set(of_sentence))) for of_sentence in required.phrases)
        super().__init__(decoding, prompts_NP, width, *arguments)
        self.required = required
        self.phrases = [[tuple(phrase) for phrase in dict.fromkeys(phrases)] for phrases in required.phrases]
        for phrases, longest in zip(self.phrases, self.limits.lengths.tolist(), strict=True):
            tokens = sum(map(len, phrases))
            if tokens > longest:
                raise ValueError(
                    f"The required phrases have {tokens} tokens, but the translation may have only "
                    f"{longest}: raise max_length_beyond_source."
                )
        self.states = [[_State(frozenset(), frozenset(), ())] for _ in self.phrases]

    def run(self) -> Hypotheses:
        """Returns the W best hypotheses of each sentence, in the sentences' order."""
        found = super().run()
        count_N = (found.lengths > 0).sum(1)
        if not bool(count_N.all()):
            raise ValueError("No translation can contain the required phrases: other settings suppress their tokens.")
        places = torch.arange(self.width, device=count_N.device).minimum(count_N[:, None] - 1)
        rows = torch.arange(len(count_N), device=count_N.device)[:, None]
        return Hypotheses(*(part[rows, places] for part in found))

    def select(self, sentences: torch.Tensor) -> None:
        """Continues with only some of the sentences."""
        super().select(sentences)
        self.phrases, self.states = ([part[n] for n in sentences.tolist()] for part in (self.phrases, self.states))

    def continuations(self, log_p_NWV: torch.Tensor) -> tuple[Candidates, Candidates, torch.Tensor]:
        """Returns each sentence's W candidates that continue, its W that may end, and which of these end, (N, W)."""
        ends, device = set(self.limits.end_tokens.tolist()), log_p_NWV.device
        candidates = self._candidates(log_p_NWV, ends)
        left_N = (self.limits.lengths - self.length).tolist()
        running, counts, ending, ended, states = [], [], [], [], []
        for number, (scores, parents, tokens) in enumerate(zip(*(part.tolist() for part in candidates), strict=True)):
            after: dict[int, _State] = {}
            missing: dict[int, int] = {}
            complete: list[int] = []
            for place, (score, parent, token) in enumerate(zip(scores, parents, tokens, strict=True)):
                if score == -torch.inf:
                    continue
                after[place] = self._after(number, parent, token)
                missing[place] = self._missing(self.phrases[number], after[place])
                if missing[place] == 0 and len(complete) < self.width:
                    complete.append(place)
            # Leaves out finished hypotheses, and those too close to the length limit for the missing phrases.
            going_on = [p for p in after if tokens[p] not in ends and 0 < left_N[number] >= missing[p]]
            chosen = self._allocated(going_on, missing)
            states.append([after[place] for place in chosen] or [next(iter(self.states[number]))])
            counts.append(len(chosen))
            running.append(_filled(chosen, self.width))
            ending.append(_filled(complete, self.width))
            ends_now = [tokens[place] in ends or left_N[number] == 0 for place in complete]
            ended.append(ends_now + [False] * (self.width - len(ends_now)))
        self.states = [_filled(of_sentence, self.width) for of_sentence in states]
        going = _taken(candidates, torch.tensor(running, device=device))
        repeated = torch.arange(self.width, device=device) >= torch.tensor(counts, device=device)[:, None]
        going = going._replace(scores=going.scores.masked_fill(repeated, -torch.inf))
        return going, _taken(candidates, torch.tensor(ending, device=device)), torch.tensor(ended, device=device)

    def _candidates(self, log_p_NWV: torch.Tensor, ends: set[int]) -> Candidates:
        """Returns the best continuations and those that a phrase needs however unlikely they are, the best first."""
        sentences, rows, vocabulary = log_p_NWV.shape
        best = best_continuations(log_p_NWV, self.running.scores, min(2 * self.width, rows * vocabulary))
        wanted = [list(self._wanted(number, rows, ends)) for number in range(sentences)]
        most = max(map(len, wanted))
        padded = torch.tensor([pairs + [(0, 0)] * (most - len(pairs)) for pairs in wanted], device=log_p_NWV.device)
        parents, tokens = padded.unbind(-1)
        scores = log_p_NWV.flatten(1).gather(1, parents * vocabulary + tokens)
        scores += self.running.scores.gather(1, parents)
        known = (best.parents * vocabulary + best.tokens)[:, None] == (parents * vocabulary + tokens)[..., None]
        absent = torch.arange(most, device=scores.device) >= torch.tensor(
            [[len(p)] for p in wanted], device=scores.device
        )
        scores = scores.masked_fill(known.any(-1) | absent, -torch.inf)
        both = Candidates(*(torch.cat(parts, 1) for parts in zip(best, (scores, parents, tokens), strict=True)))
        order = both.scores.argsort(dim=1, descending=True, stable=True)
        return Candidates(*(part.gather(1, order) for part in both))

    def _wanted(self, number: int, rows: int, ends: set[int]) -> Iterator[tuple[int, int]]:
        """Yields hypotheses of a sentence with tokens that must be considered after them."""
        phrases = self.phrases[number]
        for row, state in enumerate(self.states[number][:rows]):
            tokens = {phrases[phrase][count] for phrase, count in state.begun}
            tokens |= {phrase[0] for which, phrase in enumerate(phrases) if which not in state.met}
            for token in sorted(tokens or ends):
                yield row, token

    def _after(self, number: int, parent: int, token: int) -> _State:
        """Returns the state of a sentence's hypothesis after one more token."""
        state, phrases, met = self.states[number][parent], self.phrases[number], self.states[number][parent].met
        if token in self.required.begin_within_word and self.length > 1:
            newest = int(self.running.paths[number, parent, 0, self.length - 2])
            if newest in self.required.end_within_word:
                met -= state.newest  # Its last word was only the beginning of a longer one.
        begun = [(which, count + 1) for which, count in state.begun if phrases[which][count] == token]
        begun += [(which, 1) for which, phrase in enumerate(phrases) if phrase[0] == token]
        newest_met = frozenset(which for which, count in begun if count == len(phrases[which]))
        met |= newest_met
        return _State(met, newest_met, tuple(one for one in begun if one[0] not in met))

    def _missing(self, phrases: list[tuple[int, ...]], state: _State) -> int:
        """Returns the fewest tokens with which a hypothesis can complete all phrases."""
        missing = sum(len(phrase) for which, phrase in enumerate(phrases) if which not in state.met)
        return missing - max((count for _, count in state.begun), default=0)

    def _allocated(self, places: list[int], missing: dict[int, int]) -> list[int]:
        """Takes hypotheses in turn from those that miss no token, one token and so on; returns them best first."""
        banks: dict[int, list[int]] = {}
        for place in places:
            banks.setdefault(missing[place], []).append(place)
        chosen: list[int] = []
        turns = [banks[count] for count in sorted(banks)]
        for turn in range(self.width):
            chosen += [bank[turn] for bank in turns if turn < len(bank)]
        return sorted(chosen[: self.width])


def _filled(items: list[Any], count: int) -> list[Any]:
    """Fills a list to `count` items with copies of its last item, or with -1 if it is empty."""
    return items + (items[-1:] or [-1]) * (count - len(items))


def _taken(candidates: Candidates, places_NW: torch.Tensor) -> Candidates:
    """Returns the candidates at some places, and impossible ones at -1."""
    taken = Candidates(*(part.gather(1, places_NW.clamp(min=0)) for part in candidates))
    return taken._replace(scores=taken.scores.masked_fill(places_NW < 0, -torch.inf))


__all__ = ["RequiredPhrases"]
