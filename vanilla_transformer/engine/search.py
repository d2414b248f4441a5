"""Section 6.1's search in small steps: score, rank, select the running hypotheses, update the finished ones.

A step's best continuations come to the host in one copy, and all books are kept there, in NumPy.

Shapes in names: N sentences · W beam width · C candidates of a sentence · V vocabulary · T tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
# Changes scores (rows, vocabulary), given the tokens before them, (rows, length).
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Chooses a token for each row, (rows, 1), from its scores, (rows, vocabulary).
Choice = Callable[[torch.Tensor], torch.Tensor]
# Share of a batch from which finished sentences are dropped: copying the others has a cost.
MIN_SHARE_TO_DROP = 0.1
# Vocabulary entries per block with one maximum, in vocabularies so large that the maxima save some 40 µs a step.
BLOCK = 64
MAX_RANKED_VOCABULARY, MAX_RANKED_SCORES = 1024, 1 << 15
# Log-probability of an excluded continuation, as in the library's search.
IMPOSSIBLE = -1.0e9


class Decoding(Protocol):
    """A search's view of a model: the decoding of some sentences, one token of each hypothesis at a time."""

    def read(self, tokens_NP: torch.Tensor, /) -> None:
        """Reads all tokens of each sentence's prompt but the last, before the first step."""

    def step(self, tokens_NW: torch.Tensor, /) -> torch.Tensor:
        """Maps the newest token of each hypothesis to logits of the next, (sentences · hypotheses, vocabulary).

        The number of hypotheses may grow from one to the beam's width, and then stays there.
        """

    def reorder(self, parents_NW: torch.Tensor, /) -> None:
        """Makes each hypothesis continue the given one of its sentence, before the next step."""

    def select(self, sentences: torch.Tensor, /) -> None:
        """Continues with the given sentences only, as indices in the batch."""


def log_probabilities(logits_RV: torch.Tensor) -> torch.Tensor:
    """Returns the log-softmax in float32; overwrites float32 logits, which saves a copy."""
    logits_RV = logits_RV.float()
    return torch.log_softmax(logits_RV, -1, out=logits_RV)


def best_continuations(
    log_p_NWV: torch.Tensor, scores_NW: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns scores and places, hypothesis · V + token, of a sentence's `count` best continuations, both (N, C).

    Exact, and cheaper than sorting: each of the best tokens lies in one of the `count` best blocks by maximum, so only
    these blocks are searched.
    """
    sentences, width, vocabulary = log_p_NWV.shape
    blocks = vocabulary // BLOCK
    if vocabulary <= MAX_RANKED_VOCABULARY or log_p_NWV.numel() <= MAX_RANKED_SCORES or width * blocks <= count:
        values, places = (log_p_NWV + scores_NW[..., None]).view(sentences, -1).topk(count)
        return values, places
    in_blocks = log_p_NWV[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))
    best_blocks = (in_blocks.amax(-1) + scores_NW[..., None]).flatten(1).topk(count, sorted=False).indices
    device = log_p_NWV.device
    first = best_blocks // blocks * vocabulary + best_blocks % blocks * BLOCK
    members = first[..., None] + torch.arange(BLOCK, device=device)
    hypotheses = torch.arange(width, device=device)[:, None]
    rest = torch.arange(blocks * BLOCK, vocabulary, device=device) + vocabulary * hypotheses
    places = torch.cat((members.flatten(1), rest.flatten().expand(sentences, -1)), dim=1)
    values = log_p_NWV.flatten(1).gather(1, places) + scores_NW.gather(1, places // vocabulary)
    values, best = values.topk(count)
    return values, places.gather(1, best)


class Hypotheses(NamedTuple):
    """The W best hypotheses of each sentence, best first.

    Attributes:
        scores: Log-probability divided by the length penalty, (N, W).
        lengths: New tokens, 0 if there is no hypothesis, (N, W).
        tokens: New tokens, (N, W, T); what is beyond a hypothesis is -1.
        parents: The hypothesis that each token continued, likewise.
    """

    scores: Array
    lengths: Array
    tokens: Array
    parents: Array


class _Ended(NamedTuple):
    """The best hypotheses that have ended, each (N, W): penalised scores, lengths, and places in the last step."""

    scores: Array
    lengths: Array
    places: Array


class _Step(NamedTuple):
    """All candidates of one step: token, hypothesis continued, and its place in the step before, each (N·C,)."""

    tokens: Array
    parents: Array
    places: Array


def penalty(length: float, exponent: float) -> float:
    """Returns ((offset + length) / divisor)^exponent, which divides a log-probability.

    Attributes of the exponent give offset and divisor (Google's: 5 and 6); without them it is length^exponent.
    """
    offset, divisor = getattr(exponent, "offset", 0.0), getattr(exponent, "divisor", 1.0)
    return float(((offset + length) / divisor) ** float(exponent))


class Limits(NamedTuple):
    """Limits that end hypotheses, and the search of a sentence.

    Attributes:
        end_tokens: Tokens that end a hypothesis, (ends,).
        candidates: Continuations of a sentence that a step ranks.
        lengths: New tokens allowed per hypothesis, (N,).
        last_penalty: Penalty of the longest length, by which running hypotheses are compared with ended ones, (N,).
        counted: Hypotheses of a sentence that must have ended, and that no running one may overtake, before its search
            stops.
        length_penalty: Exponent of the penalty.
        early_stopping: As in `GenerationConfig`.
    """

    end_tokens: Array
    candidates: int
    lengths: Array
    last_penalty: Array
    counted: int
    length_penalty: float
    early_stopping: bool | str


class BeamSearch:
    """Section 6.1: the search for the best hypotheses of some sentences, dropped from the batch as they finish."""

    def __init__(
        self,
        decoding: Decoding,
        prompts_NP: torch.Tensor,
        width: int,
        limits: Limits,
        process: Processor | None = None,
    ) -> None:
        self.decoding, self.width, self.limits, self.process = decoding, width, limits, process
        sentences, self.device = len(prompts_NP), prompts_NP.device
        self.steps: list[_Step] = []
        # Of the running hypotheses: log-probabilities, and places among the candidates of the last step.
        self.scores_NW = np.zeros((sentences, 1), np.float32)
        self.places_NW = np.zeros((sentences, 1), int)
        self.ended, self.found = (
            _Ended(np.full((sentences, width), IMPOSSIBLE, np.float32), *np.zeros((2, sentences, width), int))
            for _ in range(2)
        )
        self.numbers, self.searching = np.arange(sentences), np.ones(sentences, bool)
        self.prefixes_NWT = None if process is None else prompts_NP[:, None]
        self.tokens_NW = read_prompts(decoding, prompts_NP)

    def run(self) -> Hypotheses:
        """Returns the W best hypotheses of each sentence, in the sentences' order."""
        while len(self.numbers):
            self._step()
            over = len(self.numbers) - int(self.searching.sum())
            if over >= max(1, len(self.numbers) * MIN_SHARE_TO_DROP):
                self._drop_finished()
        return self._traced()

    def _step(self) -> None:
        """Adds one token to each hypothesis."""
        log_p_RV = log_probabilities(self.decoding.step(self.tokens_NW))
        if self.process is not None and self.prefixes_NWT is not None:
            log_p_RV = self.process(self.prefixes_NWT.flatten(0, 1), log_p_RV)
        log_p_NWV = log_p_RV.view(*self.tokens_NW.shape, -1)
        found = best_continuations(log_p_NWV, self._there(self.scores_NW), self.limits.candidates)
        scores_NC, places_NC = (part.numpy(force=True) for part in found)
        parents_NC, tokens_NC = np.divmod(places_NC, log_p_RV.shape[1])
        befores_NC = np.take_along_axis(self.places_NW, parents_NC, 1)
        self.steps.append(_Step(tokens_NC.ravel(), parents_NC.ravel(), befores_NC.ravel()))
        ended_NC = (tokens_NC[..., None] == self.limits.end_tokens).any(-1)
        ended_NC |= (len(self.steps) >= self.limits.lengths)[:, None]
        places_NC = np.arange(places_NC.size).reshape(places_NC.shape)
        self._end(scores_NC, places_NC, ended_NC)
        chosen_NW = ended_NC.argsort(1, kind="stable")[:, : self.width]
        scores_NC = scores_NC + np.float32(IMPOSSIBLE) * ended_NC
        self.scores_NW, self.places_NW, parents_NW, tokens_NW = (
            np.take_along_axis(part, chosen_NW, 1) for part in (scores_NC, places_NC, parents_NC, tokens_NC)
        )
        self.searching &= self._may_improve()
        parents, self.tokens_NW = self._there(parents_NW), self._there(tokens_NW)
        self.decoding.reorder(parents)
        if self.prefixes_NWT is not None:
            chosen = parents[..., None].expand(-1, -1, self.prefixes_NWT.shape[2])
            self.prefixes_NWT = torch.cat((self.prefixes_NWT.gather(1, chosen), self.tokens_NW[..., None]), 2)

    def _end(self, scores_NC: Array, places_NC: Array, ended_NC: Array) -> None:
        """Keeps the best W of the hypotheses that had ended and of those that end now, among the step's best W."""
        ended_NW, length = ended_NC[:, : self.width] & self.searching[:, None], len(self.steps)
        if ended_NW.any():
            divisor = np.float32(penalty(length, self.limits.length_penalty))
            scores_NW = np.where(ended_NW, scores_NC[:, : self.width] / divisor, np.float32(IMPOSSIBLE))
            now = _Ended(scores_NW, length * ended_NW, places_NC[:, : self.width])
            together = [np.concatenate(parts, 1) for parts in zip(self.ended, now, strict=True)]
            best_NW = (-together[0]).argsort(1, kind="stable")[:, : self.width]
            self.ended = _Ended(*(np.take_along_axis(part, best_NW, 1) for part in together))

    def _may_improve(self) -> Array:
        """Marks the sentences whose running hypotheses may still change the result, (N,).

        Section 6.1 stops as soon as none can ("never"): a hypothesis gets no likelier by continuing, so the best
        running one, under the penalty of the longest length allowed, bounds everything to come. The library's other
        rules stop earlier: True once W have ended, False by the bound of a hypothesis of the current length.
        """
        best, last, limits = self.scores_NW[:, 0], self.ended.scores[:, self.limits.counted - 1], self.limits
        # Processors may lift scores so high that impossible ones seem possible.
        goes_on: Array = (best > IMPOSSIBLE / 2) & (len(self.steps) < limits.lengths)
        if limits.early_stopping is True:
            return goes_on & (last <= IMPOSSIBLE)
        is_exact = limits.early_stopping == "never" and limits.length_penalty > 0
        now = np.float32(penalty(len(self.steps), limits.length_penalty))
        return goes_on & (best / (limits.last_penalty if is_exact else now) > last)

    def _drop_finished(self) -> None:
        """Keeps the results of sentences whose search is over, and goes on with the others alone."""
        over, kept = self.numbers[~self.searching], np.flatnonzero(self.searching)
        for found, ended in zip(self.found, self.ended, strict=True):
            found[over] = ended[~self.searching]
        self.numbers, self.scores_NW, self.places_NW = self.numbers[kept], self.scores_NW[kept], self.places_NW[kept]
        self.ended = _Ended(*(part[kept] for part in self.ended))
        limits = self.limits
        self.limits = limits._replace(lengths=limits.lengths[kept], last_penalty=limits.last_penalty[kept])
        self.searching, sentences = self.searching[kept], self._there(kept)
        self.tokens_NW = self.tokens_NW[sentences]
        if self.prefixes_NWT is not None:
            self.prefixes_NWT = self.prefixes_NWT[sentences]
        self.decoding.select(sentences)

    def _traced(self) -> Hypotheses:
        """Follows the hypotheses found from their last tokens to their first."""
        scores, lengths, places = self.found
        tokens, parents = np.full((2, *lengths.shape, lengths.max(initial=0)), -1)
        for position in reversed(range(tokens.shape[-1])):
            there, step = lengths > position, self.steps[position]
            at = places[there]
            tokens[there, position], parents[there, position] = step.tokens[at], step.parents[at]
            places[there] = step.places[at]
        return Hypotheses(scores, lengths, tokens, parents)

    def _there(self, values: Array) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)


def likeliest(scores_RV: torch.Tensor) -> torch.Tensor:
    """Returns the token of the highest score in each row, (rows, 1)."""
    return scores_RV.argmax(-1, keepdim=True)


def sampled(scores_RV: torch.Tensor) -> torch.Tensor:
    """Draws a token for each row, (rows, 1), from its softmax with torch's generator, as the library does."""
    return torch.multinomial(scores_RV.float().softmax(-1), 1)


def greedy_search(
    decoding: Decoding,
    prompts_NP: torch.Tensor,
    limits: Limits,
    padding: int,
    process: Processor | None = None,
    choose: Choice = likeliest,
    *,
    may_drop_finished: bool = True,
) -> torch.Tensor:
    """Takes a token at each step; returns (sentences, prompt and new tokens), padded after the end."""
    device, sentences = prompts_NP.device, len(prompts_NP)
    tokens_N1, prefixes_NT = read_prompts(decoding, prompts_NP), prompts_NP
    numbers, searching, allowed = np.arange(sentences), np.ones(sentences, bool), limits.lengths
    written: list[Array] = []
    while searching.any():
        scores_NV = decoding.step(tokens_N1)
        if process is not None:
            scores_NV = process(prefixes_NT, scores_NV.float())
        tokens_N = np.where(searching, choose(scores_NV).numpy(force=True)[:, 0], padding)
        written.append(np.full(sentences, padding))
        written[-1][numbers] = tokens_N
        searching &= (tokens_N[:, None] != limits.end_tokens).all(1) & (len(written) < allowed)
        tokens_N1 = torch.from_numpy(tokens_N[:, None]).to(device)
        if process is not None:
            prefixes_NT = torch.cat((prefixes_NT, tokens_N1), 1)
        over = len(numbers) - int(searching.sum())
        if may_drop_finished and max(1, len(numbers) * MIN_SHARE_TO_DROP) <= over < len(numbers):
            kept = torch.from_numpy(np.flatnonzero(searching)).to(device)
            numbers, allowed, searching = numbers[searching], allowed[searching], searching[searching]
            tokens_N1, prefixes_NT = tokens_N1[kept], prefixes_NT[kept]
            decoding.select(kept)
    return torch.cat((prompts_NP, torch.from_numpy(np.stack(written, 1)).to(device)), 1)


def read_prompts(decoding: Decoding, prompts_NP: torch.Tensor) -> torch.Tensor:
    """Reads all tokens of the prompts but the last; returns the last, (sentences, 1)."""
    if prompts_NP.shape[1] > 1:
        decoding.read(prompts_NP[:, :-1])
    return prompts_NP[:, -1:]
