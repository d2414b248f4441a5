"""Section 6.1's search in small steps: score, rank, select the running hypotheses, update the finished ones.

Shapes in names: N sentences · W beam width · C candidates of a sentence · V vocabulary · T tokens.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

# Changes scores (rows, vocabulary), given the tokens before them, (rows, length).
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# On an accelerator the host asks only every so many steps which sentences are finished: each answer makes it wait.
STEPS_PER_QUESTION = 4
# Share of a batch from which finished sentences are dropped: copying the others has a cost.
MIN_SHARE_TO_DROP = 0.1
# Vocabulary entries per block with one maximum, in vocabularies so large that the maxima save some 40 µs a step.
BLOCK = 64
MAX_RANKED_VOCABULARY, MAX_RANKED_SCORES = 1024, 1 << 15
# Log-probability of an excluded continuation, as in the library's search.
IMPOSSIBLE = -1.0e9


class DecoderState(Protocol):
    """A search's view of a model that decodes some sentences, one token of each hypothesis at a time."""

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


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first: log-probability, hypothesis and token, each (N, C)."""

    scores: torch.Tensor
    parents: torch.Tensor
    tokens: torch.Tensor


def best_continuations(log_p_NWV: torch.Tensor, scores_NW: torch.Tensor, count: int) -> Candidates:
    """Returns the `count` best of all tokens after all hypotheses of a sentence; `count` is at most W·V.

    Exact, and cheaper than sorting: each of the best tokens lies in one of the `count` best blocks by maximum, so only
    these blocks are searched.
    """
    sentences, width, vocabulary = log_p_NWV.shape
    blocks = vocabulary // BLOCK
    if vocabulary <= MAX_RANKED_VOCABULARY or log_p_NWV.numel() <= MAX_RANKED_SCORES or width * blocks <= count:
        values, places = (log_p_NWV + scores_NW[..., None]).view(sentences, -1).topk(count)
        return Candidates(values, places // vocabulary, places % vocabulary)
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
    places = places.gather(1, best)
    return Candidates(values, places // vocabulary, places % vocabulary)


class Hypotheses(NamedTuple):
    """Some hypotheses of each sentence, best first.

    Attributes:
        scores: Log-probability, divided by the length penalty once a hypothesis has ended, (N, W).
        paths: Tokens, and the hypothesis that each one continued, (N, W, 2, T).
        lengths: New tokens, 0 if there is no hypothesis, (N, W).
    """

    scores: torch.Tensor
    paths: torch.Tensor
    lengths: torch.Tensor

    def select(self, sentences: torch.Tensor) -> "Hypotheses":
        """Keeps the given sentences."""
        return Hypotheses(*(part[sentences] for part in self))


class Limits(NamedTuple):
    """Limits that end hypotheses, and the search of a sentence.

    Attributes:
        end_tokens: Tokens that end a hypothesis, (ends,).
        candidates: Continuations of a sentence that a step ranks.
        lengths: New tokens allowed per hypothesis, (N,).
        last_penalty: Penalty of the longest length, by which running hypotheses are compared with ended ones, (N,).
        counted: Hypotheses of a sentence that must have ended, and that no running one may overtake, before its search
            stops.
        length_penalty: Exponent of the penalty, a power of the length; of Google's, this power has another meaning.
        early_stopping: As in `GenerationConfig`.
    """

    end_tokens: torch.Tensor
    candidates: int
    lengths: torch.Tensor
    last_penalty: torch.Tensor
    counted: int
    length_penalty: float
    early_stopping: bool | str

    def select(self, sentences: torch.Tensor) -> "Limits":
        """Keeps the given sentences."""
        return self._replace(lengths=self.lengths[sentences], last_penalty=self.last_penalty[sentences])


def _extended(paths: torch.Tensor, chosen: Candidates, length: int) -> torch.Tensor:
    """Appends the candidates' tokens to their parents' paths, `length` in all."""
    paths = paths.gather(1, _like_paths(chosen.parents, paths))
    paths[..., 0, length - 1], paths[..., 1, length - 1] = chosen.tokens, chosen.parents
    return paths


def _like_paths(chosen_NW: torch.Tensor, paths: torch.Tensor) -> torch.Tensor:
    """Returns numbers of hypotheses in the shape that gathers their paths."""
    return chosen_NW[..., None, None].expand(-1, -1, *paths.shape[2:])


class BeamSearch:
    """Section 6.1: the search for the best hypotheses of some sentences, dropped from the batch as they finish."""

    def __init__(
        self,
        state: DecoderState,
        prompts_NP: torch.Tensor,
        width: int,
        limits: Limits,
        process: Processor | None = None,
    ) -> None:
        self.state, self.prompts_NP, self.width = state, prompts_NP, width
        self.limits, self.process, self.length = limits, process, 0
        sentences, longest, device = len(prompts_NP), int(limits.lengths.max()), prompts_NP.device
        self.longest, self.steps_per_question = longest, 1 if device.type == "cpu" else STEPS_PER_QUESTION
        # Of the running hypotheses: log-probabilities, (N, W), and paths, (N, W, 2, T), as of `Hypotheses`.
        self.scores_NW = torch.zeros(sentences, 1, dtype=torch.float32, device=device)
        self.paths = torch.zeros(sentences, 1, 2, longest, dtype=torch.long, device=device)
        self.finished = _no_hypotheses(sentences, width, longest, device)
        self.found = _no_hypotheses(sentences, width, longest, device)
        self.numbers = torch.arange(sentences, device=device)
        self.searching = torch.ones(sentences, dtype=torch.bool, device=device)
        self.tokens_NW = read_prompts(state, prompts_NP)

    def run(self) -> Hypotheses:
        """Returns the W best hypotheses of each sentence, in the sentences' order."""
        while len(self.numbers):
            self._step()
            if self.length % self.steps_per_question == 0 or self.length == self.longest:
                self._drop_finished()
        return self.found

    def _step(self) -> None:
        """Adds one token to each hypothesis."""
        sentences, width = self.tokens_NW.shape
        log_p_RV = self.state.step(self.tokens_NW).float()
        torch.log_softmax(log_p_RV, -1, out=log_p_RV)  # In place, which saves a copy.
        if self.process is not None:
            log_p_RV = self.process(self._rows(), log_p_RV)
        self.length += 1
        found = best_continuations(log_p_RV.view(sentences, width, -1), self.scores_NW, self.limits.candidates)
        ended_NC = (found.tokens[..., None] == self.limits.end_tokens).any(-1)
        ended_NC |= (self.length >= self.limits.lengths)[:, None]
        # Only the best W of a step may end.
        self._finish(Candidates(*(part[:, : self.width] for part in found)), ended_NC[:, : self.width])
        self.scores_NW, chosen = found.scores.add(ended_NC, alpha=IMPOSSIBLE).topk(self.width)
        parents_NW, self.tokens_NW = found.parents.gather(1, chosen), found.tokens.gather(1, chosen)
        self.paths = _extended(self.paths, Candidates(self.scores_NW, parents_NW, self.tokens_NW), self.length)
        self.state.reorder(parents_NW)
        self.searching &= self._may_improve()

    def _finish(self, ending: Candidates, ended_NW: torch.Tensor) -> None:
        """Keeps the best W of the hypotheses that had finished and of the candidates that end now."""
        ended_NW = ended_NW & self.searching[:, None]
        if ended_NW.device.type == "cpu" and not ended_NW.any():
            return
        scores = (ending.scores / float(self.length) ** self.limits.length_penalty).masked_fill(~ended_NW, IMPOSSIBLE)
        scores, chosen = torch.cat((self.finished.scores, scores), 1).topk(self.width)
        paths = torch.cat((self.finished.paths, _extended(self.paths, ending, self.length)), 1)
        lengths = torch.cat((self.finished.lengths, self.length * ended_NW), 1)
        self.finished = Hypotheses(scores, paths.gather(1, _like_paths(chosen, paths)), lengths.gather(1, chosen))

    def _may_improve(self) -> torch.Tensor:
        """Marks the sentences whose running hypotheses may still change the result, (N,).

        Section 6.1 stops as soon as none can ("never"): a hypothesis gets no likelier by continuing, so the best
        running one, under the penalty of the longest length allowed, bounds everything to come. The library's other
        rules stop earlier: True once W have ended, False by the bound of a hypothesis of the current length.
        """
        limits, best, last = self.limits, self.scores_NW[:, 0], self.finished.scores[:, self.limits.counted - 1]
        # Processors may lift scores so high that impossible ones seem possible.
        goes_on = (best > IMPOSSIBLE / 2) & (self.length < limits.lengths)
        if limits.early_stopping is True:
            return goes_on & (last <= IMPOSSIBLE)
        is_exact = limits.early_stopping == "never" and limits.length_penalty > 0
        divisor = limits.last_penalty if is_exact else float(self.length) ** limits.length_penalty
        return goes_on & (best / divisor > last)

    def _drop_finished(self) -> None:
        """Stores the results of sentences whose search is over and drops them, where that saves more than it costs."""
        over = len(self.numbers) - int(self.searching.sum())
        if over >= max(1, len(self.numbers) * MIN_SHARE_TO_DROP):
            sentences = self.searching.to(torch.uint8).argsort(stable=True)
            for kept, found in zip(self.found, self.finished.select(sentences[:over]), strict=True):
                kept[self.numbers[sentences[:over]]] = found
            self.select(sentences[over:])

    def select(self, sentences: torch.Tensor) -> None:
        """Continues with the given sentences only, as indices in the batch."""
        self.numbers, self.searching = self.numbers[sentences], self.searching[sentences]
        self.scores_NW, self.paths = self.scores_NW[sentences], self.paths[sentences]
        self.finished = self.finished.select(sentences)
        self.limits = self.limits.select(sentences)
        self.tokens_NW, self.prompts_NP = self.tokens_NW[sentences], self.prompts_NP[sentences]
        self.state.select(sentences)

    def _rows(self) -> torch.Tensor:
        """Returns all tokens of the running hypotheses, (rows, length)."""
        sentences, width = self.tokens_NW.shape
        prompts = self.prompts_NP[:, None].expand(-1, width, -1)
        return torch.cat((prompts, self.paths[..., 0, : self.length]), -1).flatten(0, 1)


def greedy_search(
    state: DecoderState,
    prompts_NP: torch.Tensor,
    limits: Limits,
    padding: int,
    process: Processor | None = None,
    *,
    sample: bool = False,
) -> torch.Tensor:
    """Takes the likeliest token at each step, or draws one; returns (sentences, prompt and new tokens).

    They are padded after the end. As in the library, torch's generator also draws for finished sentences, so that one
    seed draws the same tokens.
    """
    device, (sentences, prompt_length) = prompts_NP.device, prompts_NP.shape
    tokens_N1 = read_prompts(state, prompts_NP)
    allowed, ends = limits.lengths.tolist(), set(limits.end_tokens.tolist())
    found = torch.cat((prompts_NP, prompts_NP.new_full((sentences, max(allowed)), padding)), 1)
    numbers, rows = list(range(sentences)), torch.arange(sentences, device=device)
    searching = set(numbers)
    for length in range(prompt_length, found.shape[1]):
        scores_NV = state.step(tokens_N1)
        if process is not None:
            scores_NV = process(found[rows, :length], scores_NV.float())
        if sample:
            tokens_N1 = torch.multinomial(scores_NV.float().softmax(-1), 1)
        else:
            tokens_N1 = scores_NV.argmax(-1, keepdim=True)
        if len(searching) < len(numbers):
            over = torch.tensor([[number not in searching] for number in numbers], device=device)
            tokens_N1 = tokens_N1.masked_fill(over, padding)
        found.select(1, length).index_copy_(0, rows, tokens_N1.squeeze(1))
        new = length + 1 - prompt_length
        for number, (token,) in zip(numbers, tokens_N1.tolist(), strict=True):
            if token in ends or new >= allowed[number]:
                searching.discard(number)
        if not searching:
            return found[:, : length + 1]
        if not sample and len(numbers) - len(searching) >= max(1, len(numbers) * MIN_SHARE_TO_DROP):
            left = [place for place, number in enumerate(numbers) if number in searching]
            numbers, kept = [numbers[place] for place in left], torch.tensor(left, device=device)
            rows, tokens_N1 = rows[kept], tokens_N1[kept]
            state.select(kept)
    return found


def read_prompts(state: DecoderState, prompts_NP: torch.Tensor) -> torch.Tensor:
    """Reads all tokens of the prompts but the last; returns the last, (sentences, 1)."""
    if prompts_NP.shape[1] > 1:
        state.read(prompts_NP[:, :-1])
    return prompts_NP[:, -1:]


def _no_hypotheses(sentences: int, width: int, longest: int, device: torch.device) -> Hypotheses:
    return Hypotheses(
        scores=torch.full((sentences, width), IMPOSSIBLE, dtype=torch.float32, device=device),
        paths=torch.zeros(sentences, width, 2, longest, dtype=torch.long, device=device),
        lengths=torch.zeros(sentences, width, dtype=torch.long, device=device),
    )
