"""Beam search whose hypotheses hold phrases that are required: dynamic beam allocation (Post and Vilar 2018).

Hypotheses compete only with those that have got equally far in what is required, so that one that is further is not
lost to a likelier one; a hypothesis ends when it has everything. Shapes in names as in `search`.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor

from .search import (
    IMPOSSIBLE,
    Decoding,
    Hypotheses,
    Limits,
    Node,
    Processor,
    as_tensors,
    best_places,
    log_probabilities,
    read_prompts,
    to_float32,
)

Phrases = Sequence[tuple[int, ...]]


class RequiredPhrases(LogitsProcessor):
    """Has each translation hold some phrases, as whole words, wherever they fit best.

    To be given to `generate` as one of its `logits_processor`; it needs a beam, and this package's own search.

    Args:
        phrases: For each sentence the tokens of what is required; the first of each begins a word wherever it stands.
        begin_within_word: Tokens that go on with a word before them.
        end_within_word: Tokens that such a token goes on with.
    """

    def __init__(
        self, phrases: Sequence[Phrases], begin_within_word: frozenset[int], end_within_word: frozenset[int]
    ) -> None:
        self.phrases, self.begin_within_word, self.end_within_word = phrases, begin_within_word, end_within_word
        # Beside those asked for, two hypotheses for each step on the way to what is required: with fewer, those that
        # have not begun with it would soon be crowded out by those that have.
        self.more_beams = 2 * max(sum(map(len, set(of_sentence))) for of_sentence in phrases)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Refused: the library's search knows nothing of what is required.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "Required phrases need a beam of this package's own search: give num_beams of 2 or more, and nothing that "
            "only the library's search does."
        )


class _State(NamedTuple):
    """What a hypothesis has of its sentence's phrases.

    Attributes:
        met: The numbers of those that it holds.
        newest: Those of them that its last token has ended, which are met only if their last word ends there.
        begun: Numbers of phrases, and how many of their tokens stand at the hypothesis's end.
    """

    met: frozenset[int]
    newest: frozenset[int]
    begun: tuple[tuple[int, int], ...]


class _Running(NamedTuple):
    score: float
    node: Node | None
    state: _State


class _Candidate(NamedTuple):
    score: float
    parent: int
    token: int
    state: _State


class _Sentence:
    """The search of one sentence."""

    def __init__(self, number: int, limits: Limits, bound: float, width: int, required: RequiredPhrases) -> None:
        self.number, self.limits, self.width, self.required = number, limits, width, required
        self.phrases = [tuple(phrase) for phrase in dict.fromkeys(required.phrases[number])]
        self.longest, self.bound = int(limits.lengths[number]), bound
        self.tokens = sum(map(len, self.phrases))
        if self.tokens > self.longest:
            raise ValueError(
                f"The phrases that a translation must hold have {self.tokens} tokens and it may have {self.longest}: "
                "raise max_length_beyond_source."
            )
        self.running = [_Running(0.0, None, _State(frozenset(), frozenset(), ()))]
        self.finished: list[tuple[float, Node | None]] = []

    def wanted(self, ends: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Hypotheses, and tokens that have to be looked at after them however unlikely they are."""
        for row, (_, _, state) in enumerate(self.running):
            tokens = {self.phrases[number][count] for number, count in state.begun}
            tokens |= {phrase[0] for number, phrase in enumerate(self.phrases) if number not in state.met}
            for token in sorted(tokens or ends):
                yield row, token

    def advance(self, found: dict[tuple[int, int], float], length: int, ends: set[int]) -> bool:
        """Takes continuations, by hypothesis and token, with their scores; returns whether the search goes on."""
        candidates = [
            _Candidate(score, row, token, self._after(self.running[row], token))
            for (row, token), score in found.items()
            if row < len(self.running) and score > -inf
        ]
        left = self.longest - length
        # Nothing from which what is required could not be reached any more.
        candidates = [one for one in candidates if self._missing(one.state) <= left]
        candidates.sort(key=lambda one: -one.score)
        complete = [one for one in candidates if self._missing(one.state) == 0]
        penalty = to_float32(self.limits.penalty(float(length)))
        for one in complete[: self.width]:
            if one.token in ends or left == 0:
                self.finished.append((to_float32(one.score / penalty), self._node(one)))
        self.finished = sorted(self.finished, key=lambda one: -one[0])[: self.width]
        going_on = [one for one in candidates if one.token not in ends] if left else []
        chosen = self._allocated(going_on)
        self.parents = [one.parent for one in chosen]
        self.running = [_Running(one.score, self._node(one), one.state) for one in chosen]
        if not chosen and not self.finished:
            raise ValueError("No translation can hold the required phrases: other settings suppress their tokens.")
        return bool(chosen) and self._may_improve(length)

    def _after(self, hypothesis: _Running, token: int) -> _State:
        """What a hypothesis has with a token more."""
        state, node = hypothesis.state, hypothesis.node
        met = state.met
        if token in self.required.begin_within_word and node and node.token in self.required.end_within_word:
            met -= state.newest  # Its last word was only the beginning of another.
        begun = [(number, count + 1) for number, count in state.begun if self.phrases[number][count] == token]
        begun += [(number, 1) for number, phrase in enumerate(self.phrases) if phrase[0] == token]
        newest = frozenset(number for number, count in begun if count == len(self.phrases[number]))
        met |= newest
        return _State(met, newest, tuple(one for one in begun if one[0] not in met))

    def _missing(self, state: _State) -> int:
        """Tokens after which a hypothesis can have all that is required."""
        done = sum(len(self.phrases[number]) for number in state.met)
        return self.tokens - done - max((count for _, count in state.begun), default=0)

    def _allocated(self, candidates: list[_Candidate]) -> list[_Candidate]:
        """The best of those that miss nothing, of those that miss one token and so on, in turn; the best first."""
        banks: dict[int, list[_Candidate]] = {}
        for one in candidates:
            banks.setdefault(self._missing(one.state), []).append(one)
        chosen: list[_Candidate] = []
        turns = [banks[missing] for missing in sorted(banks)]
        for turn in range(self.width):
            chosen += [bank[turn] for bank in turns if turn < len(bank)]
        return sorted(chosen[: self.width], key=lambda one: -one.score)

    def _may_improve(self, length: int) -> bool:
        """Whether what is running may still change what is returned, as in section 6.1's search."""
        counted, limits = self.limits.counted, self.limits
        if len(self.finished) < counted:
            return True
        if limits.early_stopping is True:
            return False
        exact = limits.early_stopping == "never" and limits.length_penalty > 0
        penalty = self.bound if exact else to_float32(limits.penalty(float(length)))
        return to_float32(self.running[0].score / penalty) > self.finished[counted - 1][0]

    def _node(self, candidate: _Candidate) -> Node:
        return Node(candidate.token, candidate.parent, self.running[candidate.parent].node)


def constrained_beam_search(
    decoding: Decoding,
    prompts_NP: torch.Tensor,
    width: int,
    limits: Limits,
    required: RequiredPhrases,
    process: Processor | None = None,
) -> Hypotheses:
    """The best hypotheses of each sentence that hold its phrases, W of them; other arguments as of `beam_search`.

    Where fewer can be found, the last one stands in the place of those that are missing.

    Raises:
        ValueError: A sentence's phrases are longer than its translation may be.
    """
    device, ends = prompts_NP.device, limits.end_tokens.tolist()
    tokens_NW, prompts = read_prompts(decoding, prompts_NP), prompts_NP.tolist()
    bounds = torch.as_tensor(limits.penalty(limits.horizon)).tolist()
    everyone = [_Sentence(number, limits, bound, width, required) for number, bound in enumerate(bounds)]
    searching, length, rows = everyone, 0, 1
    while searching:
        log_p_RV = log_probabilities(decoding.step(tokens_NW))
        vocabulary = log_p_RV.shape[1]
        if process is not None:
            paths = [
                prompts[one.number] + [token for token, _ in (node.path() if node else ())]
                for one in searching
                for node in _filled([running.node for running in one.running], rows)
            ]
            log_p_RV = process(torch.tensor(paths, device=device), log_p_RV)
        scores = [
            [running.score for running in one.running] + [IMPOSSIBLE] * (rows - len(one.running)) for one in searching
        ]
        scores_NW = torch.tensor(scores, dtype=torch.float32, device=device)
        log_p_NWV = log_p_RV.view(len(searching), rows, vocabulary)
        count = min(2 * width, rows * vocabulary)
        best = [part.tolist() for part in best_places(log_p_NWV, scores_NW, count)]
        wanted = [list(one.wanted(ends)) for one in searching]
        places = [(n * rows + row, token) for n, pairs in enumerate(wanted) for row, token in pairs]
        at, tokens = torch.tensor(places, device=device).T
        values = iter((log_p_RV[at, tokens] + scores_NW.flatten()[at]).tolist())
        length += 1
        left = []
        for number, one in enumerate(searching):
            found = {
                divmod(place, vocabulary): score for score, place in zip(best[0][number], best[1][number], strict=True)
            }
            found |= {pair: next(values) for pair in wanted[number]}
            if one.advance(found, length, set(ends)):
                left.append(number)
        if not left:
            break
        parents = [_filled(one.parents, width) if one.running else [0] * width for one in searching]
        decoding.reorder(torch.tensor(parents, device=device))
        if len(left) < len(searching):
            decoding.select(torch.tensor(left, device=device))
            searching = [searching[number] for number in left]
        newest = [_filled([running.node.token for running in one.running if running.node], width) for one in searching]
        tokens_NW, rows = torch.tensor(newest, device=device), width
    for one in everyone:
        one.finished = _filled(one.finished, width)
    return as_tensors([one.finished for one in everyone], device)


def _filled(items: list[Any], count: int) -> list[Any]:
    """So many, of which the last stands in the place of those that are missing."""
    return items + items[-1:] * (count - len(items))


__all__ = ["RequiredPhrases", "constrained_beam_search"]
