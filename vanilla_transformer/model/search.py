"""Section 6.1's search in small steps: score, rank, select what runs on, update what is finished.

Shapes in names: N sentences · W beam width · C candidates of a sentence · V vocabulary · T tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import StoppingCriteria

from .packed_decoder import DecoderCache, PackedDecoder

# Changes scores (rows, vocabulary), given the tokens before them, (rows, length).
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Finished sentences are dropped once they are such a share of a batch: copying the others has a price.
MIN_SHARE_TO_DROP = 0.1
# Vocabulary entries that share one maximum.
BLOCK = 64
# Stands for the log-probability of what cannot be taken, as in the library's search.
IMPOSSIBLE = -1.0e9


class SourceLengthLimit(StoppingCriteria):
    """Ends each hypothesis at its own sentence's limit of new tokens.

    Args:
        limits: New tokens allowed, (sentences,).
        prompt_length: Tokens that the decoder starts with.
    """

    def __init__(self, limits: torch.Tensor, prompt_length: int) -> None:
        self.limits = limits
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Whether each row is as long as its sentence allows; rows of one sentence stand together."""
        return input_ids.shape[1] - self.prompt_length >= self._of_rows(input_ids)

    def beyond(self, sequences: torch.Tensor) -> torch.Tensor:
        """Which tokens stand beyond the limit of their row, in the shape of the sequences."""
        places = torch.arange(sequences.shape[1], device=sequences.device) - self.prompt_length
        return places >= self._of_rows(sequences)[:, None].clamp(min=1)

    def _of_rows(self, input_ids: torch.Tensor) -> torch.Tensor:
        limits = self.limits.to(input_ids.device)
        return limits.repeat_interleave(input_ids.shape[0] // limits.shape[0])


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first: log-probability, hypothesis and token, each (N, C)."""

    scores: torch.Tensor
    parents: torch.Tensor
    tokens: torch.Tensor


def log_probabilities(logits_RV: torch.Tensor) -> torch.Tensor:
    """The log-softmax in float32; takes the place of the logits where they are float32, which saves a copy."""
    logits_RV = logits_RV.float()
    return torch.log_softmax(logits_RV, -1, out=logits_RV)


def best_continuations(log_p_NWV: torch.Tensor, scores_NW: torch.Tensor, count: int) -> Candidates:
    """The `count` best of all tokens after all hypotheses of a sentence; `count` is at most W·V.

    Args:
        log_p_NWV: Log-probability of each token after each hypothesis.
        scores_NW: Log-probability of each hypothesis.

    Exact, and cheaper than sorting: a token among the best lies in one of the best blocks by maximum, so only the
    tokens of so many blocks are looked at.
    """
    sentences, width, vocabulary = log_p_NWV.shape
    blocks = vocabulary // BLOCK
    if width * blocks <= count:
        values, places = (log_p_NWV + scores_NW[..., None]).flatten(1).topk(count)
        return Candidates(values, places // vocabulary, places % vocabulary)
    in_blocks = log_p_NWV[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))
    best_blocks = (in_blocks.amax(-1) + scores_NW[..., None]).flatten(1).topk(count, sorted=False).indices
    device = log_p_NWV.device
    first = best_blocks // blocks * vocabulary + best_blocks % blocks * BLOCK
    members = first[..., None] + torch.arange(BLOCK, device=device)
    rest = (
        torch.arange(blocks * BLOCK, vocabulary, device=device)
        + vocabulary * torch.arange(width, device=device)[:, None]
    )
    places = torch.cat((members.flatten(1), rest.flatten().expand(sentences, -1)), dim=1)
    values = log_p_NWV.flatten(1).gather(1, places) + scores_NW.gather(1, places // vocabulary)
    best = values.topk(count)
    places = places.gather(1, best.indices)
    return Candidates(best.values, places // vocabulary, places % vocabulary)


class Hypotheses(NamedTuple):
    """Some hypotheses of each sentence, best first.

    Attributes:
        scores: Log-probability, divided by the length penalty once a hypothesis has ended, (N, W).
        paths: Tokens, and the hypothesis that each was taken from, (N, W, 2, T).
        lengths: New tokens, 0 where there is no hypothesis, (N, W).
    """

    scores: torch.Tensor
    paths: torch.Tensor
    lengths: torch.Tensor

    def select(self, sentences: torch.Tensor) -> "Hypotheses":
        """Those of some sentences."""
        return Hypotheses(*(part[sentences] for part in self))


class Limits(NamedTuple):
    """What ends a hypothesis, and what the search of a sentence.

    Attributes:
        end_tokens: Tokens that end a hypothesis, (ends,).
        candidates: Continuations of a sentence that a step ranks.
        lengths: New tokens that a hypothesis may have, (N,).
        horizon: Length under whose penalty running hypotheses are compared with ended ones, (N,).
        counted: Hypotheses of a sentence that must have ended, and that none may overtake, before its search stops.
        length_penalty: Exponent of the penalty that a log-probability is divided by.
        google: Whether that penalty is Google's, or the library's length^length_penalty.
        early_stopping: As `GenerationConfig` has it.
    """

    end_tokens: torch.Tensor
    candidates: int
    lengths: torch.Tensor
    horizon: torch.Tensor
    counted: int
    length_penalty: float
    google: bool
    early_stopping: bool | str

    def penalty(self, length: Any) -> Any:
        """Section 6.1, after Wu et al. 2016, Eq. 14: ((5 + |Y|) / 6)^α; of a number or of a tensor of lengths."""
        return ((5.0 + length) / 6.0 if self.google else length) ** self.length_penalty

    def select(self, sentences: torch.Tensor) -> "Limits":
        """Those of some sentences."""
        return self._replace(lengths=self.lengths[sentences], horizon=self.horizon[sentences])


def ends(candidates: Candidates, length: int, limits: Limits) -> torch.Tensor:
    """Which candidates end a hypothesis of `length` new tokens, (N, C)."""
    return torch.isin(candidates.tokens, limits.end_tokens) | (length >= limits.lengths)[:, None]


def select_running(
    running: Hypotheses, candidates: Candidates, ended_NC: torch.Tensor, width: int, length: int
) -> tuple[Hypotheses, torch.Tensor, torch.Tensor]:
    """The `width` best candidates that have not ended, as hypotheses; their parents and their last tokens, (N, W)."""
    scores, chosen = (candidates.scores + ended_NC * IMPOSSIBLE).topk(width)
    parents, tokens = candidates.parents.gather(1, chosen), candidates.tokens.gather(1, chosen)
    paths = _extended(running.paths, parents, tokens, length)
    return Hypotheses(scores, paths, torch.full_like(parents, length)), parents, tokens


def update_finished(
    finished: Hypotheses,
    running: Hypotheses,
    candidates: Candidates,
    ended_NC: torch.Tensor,
    length: int,
    limits: Limits,
) -> Hypotheses:
    """The best of what had ended before and of what ends now; only the best W candidates of a step may end."""
    width = finished.scores.shape[1]
    ended_NW = ended_NC[:, :width]
    scores = candidates.scores[:, :width] / limits.penalty(float(length))
    scores, chosen = torch.cat((finished.scores, scores.masked_fill(~ended_NW, IMPOSSIBLE)), 1).topk(width)
    ending = _extended(running.paths, candidates.parents[:, :width], candidates.tokens[:, :width], length)
    paths = torch.cat((finished.paths, ending), 1)
    lengths = torch.cat((finished.lengths, length * ended_NW), 1)
    return Hypotheses(scores, paths.gather(1, _like_paths(chosen, paths)), lengths.gather(1, chosen))


def may_improve(running: Hypotheses, finished: Hypotheses, length: int, limits: Limits) -> torch.Tensor:
    """Whether a sentence's running hypotheses of `length` new tokens may still change what is returned, (N,).

    Section 6.1 stops as soon as nothing can ("never"): a hypothesis gets no likelier by going on, so that the best
    running one, under the penalty of the longest that is allowed, bounds all that is to come. The library's other
    rules give up before that: True once W have ended, False by the bound of a hypothesis that is as long as now.
    """
    enough = (finished.lengths[:, : limits.counted] > 0).all(1)
    if limits.early_stopping is True:
        return ~enough
    exact = limits.early_stopping == "never" and limits.length_penalty > 0
    bound = running.scores[:, 0] / limits.penalty(limits.horizon if exact else float(length))
    return ~enough | (bound > finished.scores[:, limits.counted - 1])


def _extended(paths: torch.Tensor, parents: torch.Tensor, tokens: torch.Tensor, length: int) -> torch.Tensor:
    """The parents' paths with a token more, `length` in all."""
    paths = paths.gather(1, _like_paths(parents, paths))
    paths[..., 0, length - 1], paths[..., 1, length - 1] = tokens, parents
    return paths


def _like_paths(chosen_NW: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
    """Numbers of hypotheses, in the shape that gathers their paths."""
    return chosen_NW[..., None, None].expand(-1, -1, *paths.shape[2:])


class BeamSearch:
    """Section 6.1: the search for the best hypotheses of some sentences, dropped from the batch as they finish.

    Args:
        decoder: Gives the log-probabilities of the next tokens.
        cache: Keys and values of the sources and hypotheses.
        prompts_NP: Tokens that the decoder starts with, (sentences, prompt length).
        width: Hypotheses kept at each step.
        limits: When hypotheses and searches end.
        process: Changes log-probabilities (rows, vocabulary), given the tokens before, (rows, length).
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        cache: DecoderCache,
        prompts_NP: torch.Tensor,
        width: int,
        limits: Limits,
        process: Processor | None = None,
    ) -> None:
        self.decoder, self.cache, self.prompts_NP, self.width, self.process = (
            decoder,
            cache,
            prompts_NP,
            width,
            process,
        )
        self.limits, self.length = limits, 0
        sentences, longest, device = len(prompts_NP), int(limits.lengths.max()), prompts_NP.device
        self.running = _no_hypotheses(sentences, 1, longest, device)._replace(
            scores=torch.zeros(sentences, 1, device=device)
        )
        self.finished = _no_hypotheses(sentences, width, longest, device)
        self.found = _no_hypotheses(sentences, width, longest, device)
        self.numbers = torch.arange(sentences, device=device)
        self.searching = torch.ones(sentences, dtype=torch.bool, device=device)
        self.tokens_NW = read_prompts(decoder, cache, prompts_NP)

    def run(self) -> Hypotheses:
        """The best hypotheses of each sentence, W of them, in the sentences' order."""
        while len(self.numbers):
            self._step()
            self._drop_finished()
        return self.found

    def _step(self) -> None:
        """One more token for each hypothesis."""
        sentences, width = self.tokens_NW.shape
        position = self.prompts_NP.shape[1] + self.length - 1
        log_p_RV = log_probabilities(self.decoder.step(self.tokens_NW, position, self.cache))
        if self.process is not None:
            log_p_RV = self.process(self._rows(), log_p_RV)
        log_p_NWV = log_p_RV.view(sentences, width, -1)
        candidates = best_continuations(log_p_NWV, self.running.scores, self.limits.candidates)
        self.length += 1
        ended_NC = ends(candidates, self.length, self.limits)
        if ended_NC[:, : self.width].any():
            self.finished = update_finished(
                self.finished, self.running, candidates, ended_NC, self.length, self.limits
            )
        self.running, parents, self.tokens_NW = select_running(
            self.running, candidates, ended_NC, self.width, self.length
        )
        self.cache.reorder(parents)
        still = may_improve(self.running, self.finished, self.length, self.limits) & ~ended_NC.all(1)
        over = self.searching & ~still
        if over.any():
            self._store_results(over)
            self.searching &= still

    def _store_results(self, over: torch.Tensor) -> None:
        """Stores the results of the sentences whose search is over."""
        for kept, found in zip(self.found, self.finished.select(over), strict=True):
            kept[self.numbers[over]] = found

    def _drop_finished(self) -> None:
        """Continues without the sentences whose search is over, where that saves more than copying costs."""
        left = self.searching.nonzero().squeeze(1)
        if len(self.numbers) - len(left) < max(1, len(self.numbers) * MIN_SHARE_TO_DROP):
            return
        self.numbers, self.searching = self.numbers[left], self.searching[left]
        self.running, self.finished = self.running.select(left), self.finished.select(left)
        self.limits = self.limits.select(left)
        self.tokens_NW, self.prompts_NP = self.tokens_NW[left], self.prompts_NP[left]
        self.cache.select(left)

    def _rows(self) -> torch.Tensor:
        """All tokens of the running hypotheses, (rows, length)."""
        sentences, width = self.tokens_NW.shape
        prompts = self.prompts_NP[:, None].expand(-1, width, -1)
        return torch.cat((prompts, self.running.paths[..., 0, : self.length]), -1).flatten(0, 1)


def greedy_search(
    decoder: PackedDecoder,
    cache: DecoderCache,
    prompts_NP: torch.Tensor,
    limits: Limits,
    padding: int,
    process: Processor | None = None,
    *,
    may_drop_finished: bool = True,
) -> torch.Tensor:
    """The likeliest token at each step, (sentences, prompt and new tokens), `padding` after the end.

    Args:
        may_drop_finished: Whether finished sentences may be dropped from the cache.
    """
    tokens_N1 = read_prompts(decoder, cache, prompts_NP)
    sentences, longest = len(prompts_NP), int(limits.lengths.max())
    found = torch.cat((prompts_NP, prompts_NP.new_full((sentences, longest), padding)), 1)
    numbers = torch.arange(sentences, device=prompts_NP.device)
    searching = torch.ones(sentences, dtype=torch.bool, device=prompts_NP.device)
    for length in range(prompts_NP.shape[1], prompts_NP.shape[1] + longest):
        scores_NV = decoder.step(tokens_N1, length - 1, cache)
        if process is not None:
            scores_NV = process(found[numbers, :length], scores_NV.float())
        tokens_N1 = scores_NV.argmax(-1, keepdim=True).masked_fill(~searching[:, None], padding)
        found[numbers, length] = tokens_N1.squeeze(1)
        new = length + 1 - prompts_NP.shape[1]
        searching &= ~torch.isin(tokens_N1, limits.end_tokens).squeeze(1) & (new < limits.lengths)
        left = searching.nonzero().squeeze(1)
        if not len(left):
            return found[:, : length + 1]
        if may_drop_finished and len(numbers) - len(left) >= max(1, len(numbers) * MIN_SHARE_TO_DROP):
            numbers, searching, tokens_N1, limits = (
                numbers[left],
                searching[left],
                tokens_N1[left],
                limits.select(left),
            )
            cache.select(left)
    return found


def read_prompts(decoder: PackedDecoder, cache: DecoderCache, prompts_NP: torch.Tensor) -> torch.Tensor:
    """Reads all tokens of the prompts but the last into the cache; returns the last, (sentences, 1)."""
    for position in range(prompts_NP.shape[1] - 1):
        decoder.step(prompts_NP[:, position, None], position, cache)
    return prompts_NP[:, -1:]


def _no_hypotheses(sentences: int, width: int, longest: int, device: torch.device) -> Hypotheses:
    return Hypotheses(
        scores=torch.full((sentences, width), IMPOSSIBLE, device=device),
        paths=torch.zeros(sentences, width, 2, longest, dtype=torch.long, device=device),
        lengths=torch.zeros(sentences, width, dtype=torch.long, device=device),
    )
