"""Section 6.1's search in small steps: score, rank, select what runs on, update what is finished.

Shapes in names: N sentences · W beam width · C candidates of a sentence · V vocabulary · T tokens.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from transformers import StoppingCriteria

# Changes scores (rows, vocabulary), given the tokens before them, (rows, length).
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Takes a token for each row, (rows, 1), by its scores, (rows, vocabulary), the numbers of the rows in the whole batch,
# (rows,), and the tokens before it.
Choice = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
# Finished sentences are dropped once they are such a share of a batch: copying the others has a price.
MIN_SHARE_TO_DROP = 0.1
# Vocabulary entries that share one maximum, where there are so many that finding these is worth some 40 µs a step.
BLOCK = 64
SMALL_VOCABULARY, FEW_SCORES = 1024, 1 << 15
# For so many sentences, numbers in Python are cheaper to compare than tensors of them.
FEW_SENTENCES = 8
# Stands for the log-probability of what cannot be taken, as in the library's search.
IMPOSSIBLE = -1.0e9


class Decoding(Protocol):
    """What a search knows of a model: the decoding of some sentences, a token of each hypothesis at a time."""

    def read(self, tokens_NP: torch.Tensor, /) -> None:
        """Before the first step: the tokens of each sentence's prompt but the last."""

    def step(self, tokens_NW: torch.Tensor, /) -> torch.Tensor:
        """The newest token of each hypothesis to logits of the next, (sentences · hypotheses, vocabulary).

        The number of hypotheses may grow from one to the beam's width, and stays that.
        """

    def reorder(self, parents_NW: torch.Tensor, /) -> None:
        """Before the next step each hypothesis continues the one of its sentence that it names."""

    def select(self, sentences: torch.Tensor, /) -> None:
        """Continues with some sentences alone, given by their indices in the batch."""


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
    """
    vocabulary = log_p_NWV.shape[2]
    values, places = best_places(log_p_NWV, scores_NW, count)
    return Candidates(values, places // vocabulary, places % vocabulary)


def best_places(log_p_NWV: torch.Tensor, scores_NW: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best of W·V scores, and their places among them, (N, count).

    Exact, and cheaper than sorting: a token among the best lies in one of the best blocks by maximum, so only the
    tokens of so many blocks are looked at.
    """
    sentences, width, vocabulary = log_p_NWV.shape
    blocks = vocabulary // BLOCK
    if vocabulary <= SMALL_VOCABULARY or log_p_NWV.numel() <= FEW_SCORES or width * blocks <= count:
        return (log_p_NWV + scores_NW[..., None]).view(sentences, -1).topk(count)
    in_blocks = log_p_NWV[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))
    best_blocks = (in_blocks.amax(-1) + scores_NW[..., None]).flatten(1).topk(count, sorted=False).indices
    device = log_p_NWV.device
    first = best_blocks // blocks * vocabulary + best_blocks % blocks * BLOCK
    members = first[..., None] + torch.arange(BLOCK, device=device)
    hypotheses = torch.arange(width, device=device)[:, None]
    rest = torch.arange(blocks * BLOCK, vocabulary, device=device) + vocabulary * hypotheses
    places = torch.cat((members.flatten(1), rest.flatten().expand(sentences, -1)), dim=1)
    values = log_p_NWV.flatten(1).gather(1, places) + scores_NW.gather(1, places // vocabulary)
    best = values.topk(count)
    return best.values, places.gather(1, best.indices)


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
        decoding: Gives the logits of the next tokens.
        prompts_NP: Tokens that the decoder starts with, (sentences, prompt length).
        width: Hypotheses kept at each step.
        limits: When hypotheses and searches end.
        process: Changes log-probabilities (rows, vocabulary), given the tokens before, (rows, length).
    """

    def __init__(
        self,
        decoding: Decoding,
        prompts_NP: torch.Tensor,
        width: int,
        limits: Limits,
        process: Processor | None = None,
    ) -> None:
        self.decoding, self.prompts_NP, self.width = decoding, prompts_NP, width
        self.limits, self.process, self.length = limits, process, 0
        sentences, longest, device = len(prompts_NP), int(limits.lengths.max()), prompts_NP.device
        self.running = _no_hypotheses(sentences, 1, longest, device)._replace(
            scores=torch.zeros(sentences, 1, device=device)
        )
        self.finished = _no_hypotheses(sentences, width, longest, device)
        self.found = _no_hypotheses(sentences, width, longest, device)
        self.numbers = torch.arange(sentences, device=device)
        self.searching = torch.ones(sentences, dtype=torch.bool, device=device)
        self.tokens_NW = read_prompts(decoding, prompts_NP)

    def run(self) -> Hypotheses:
        """The best hypotheses of each sentence, W of them, in the sentences' order."""
        while len(self.numbers):
            self._step()
            self._drop_finished()
        return self.found

    def _step(self) -> None:
        """One more token for each hypothesis."""
        sentences, width = self.tokens_NW.shape
        log_p_RV = log_probabilities(self.decoding.step(self.tokens_NW))
        if self.process is not None:
            log_p_RV = self.process(self._rows(), log_p_RV)
        log_p_NWV = log_p_RV.view(sentences, width, -1)
        candidates = best_continuations(log_p_NWV, self.running.scores, self.limits.candidates)
        self.length += 1
        length, limits = self.length, self.limits
        ended_NC = ends(candidates, length, limits)
        if ended_NC[:, : self.width].any():
            self.finished = update_finished(self.finished, self.running, candidates, ended_NC, length, limits)
        self.running, parents, self.tokens_NW = select_running(self.running, candidates, ended_NC, self.width, length)
        self.decoding.reorder(parents)
        still = may_improve(self.running, self.finished, length, limits) & ~ended_NC.all(1)
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
        self.decoding.select(left)

    def _rows(self) -> torch.Tensor:
        """All tokens of the running hypotheses, (rows, length)."""
        sentences, width = self.tokens_NW.shape
        prompts = self.prompts_NP[:, None].expand(-1, width, -1)
        return torch.cat((prompts, self.running.paths[..., 0, : self.length]), -1).flatten(0, 1)


class Node(NamedTuple):
    """The newest token of a hypothesis, and where it was taken from."""

    token: int
    parent: int
    before: "Node | None"

    def path(self) -> list[tuple[int, int]]:
        """Each token of the hypothesis with the number of the hypothesis that it was taken from."""
        found: list[tuple[int, int]] = []
        node: Node | None = self
        while node is not None:
            found.append((node.token, node.parent))
            node = node.before
        return found[::-1]


class _Sentence:
    """What `BeamSearch` knows of one sentence, in numbers of Python; each result is rounded as in its tensors."""

    def __init__(self, number: int, limits: Limits, longest: int, bound_penalty: float, width: int) -> None:
        self.number, self.limits, self.longest, self.width = number, limits, longest, width
        self.bound_penalty = bound_penalty
        # Scores and newest tokens, best first.
        self.running: list[tuple[float, Node | None]] = [(0.0, None)]
        self.finished: list[tuple[float, Node | None]] = [(IMPOSSIBLE, None)] * width
        self.parents: list[int] = []

    def advance(self, scores: list[float], places: list[int], vocabulary: int, length: int, ends: set[int]) -> bool:
        """Takes the best continuations, best first; returns whether the search goes on."""
        nodes = []
        for place in places:
            parent, token = divmod(place, vocabulary)
            nodes.append(Node(token, parent, self.running[parent][1]))
        too_long = length >= self.longest
        ended = [too_long or node.token in ends for node in nodes]
        if any(ended[: self.width]):
            penalty = to_float32(self.limits.penalty(float(length)))
            ending = [i for i in range(self.width) if ended[i]]
            finished = self.finished + [(to_float32(scores[i] / penalty), nodes[i]) for i in ending]
            self.finished = sorted(finished, key=_score, reverse=True)[: self.width]
        left: list[tuple[float, Node | None]] = [
            (to_float32(score + IMPOSSIBLE) if end else score, node)
            for score, node, end in zip(scores, nodes, ended, strict=True)
        ]
        self.running = sorted(left, key=_score, reverse=True)[: self.width]
        self.parents = [node.parent for _, node in self.running if node is not None]
        return not all(ended) and self._may_improve(length)

    def _may_improve(self, length: int) -> bool:
        """`may_improve` of this sentence."""
        limits = self.limits
        if any(node is None for _, node in self.finished[: limits.counted]):
            return True
        if limits.early_stopping is True:
            return False
        exact = limits.early_stopping == "never" and limits.length_penalty > 0
        penalty = self.bound_penalty if exact else to_float32(limits.penalty(float(length)))
        return to_float32(self.running[0][0] / penalty) > self.finished[limits.counted - 1][0]


def _score(hypothesis: tuple[float, Any]) -> float:
    return hypothesis[0]


def to_float32(value: float) -> float:
    """The value as a tensor of float32 would hold it."""
    return ctypes.c_float(value).value


def beam_search(
    decoding: Decoding,
    prompts_NP: torch.Tensor,
    width: int,
    limits: Limits,
    process: Processor | None = None,
) -> Hypotheses:
    """Section 6.1: the best hypotheses of each sentence, W of them; see `BeamSearch` for the arguments.

    For few sentences what is done between two steps is done in Python, to the same results.
    """
    if len(prompts_NP) > FEW_SENTENCES:
        return BeamSearch(decoding, prompts_NP, width, limits, process).run()
    device, ends = prompts_NP.device, set(limits.end_tokens.tolist())
    tokens_NW = read_prompts(decoding, prompts_NP)
    prompts = prompts_NP.tolist()
    bounds = torch.as_tensor(limits.penalty(limits.horizon)).tolist()
    numbered = enumerate(zip(limits.lengths.tolist(), bounds, strict=True))
    everyone = [_Sentence(number, limits, longest, bound, width) for number, (longest, bound) in numbered]
    searching, length, unchanged = everyone, 0, list(range(width))
    while searching:
        log_p_RV = log_probabilities(decoding.step(tokens_NW))
        vocabulary = log_p_RV.shape[1]
        if process is not None:
            paths = [
                prompts[sentence.number] + [token for token, _ in (node.path() if node else ())]
                for sentence in searching
                for _, node in sentence.running
            ]
            log_p_RV = process(torch.tensor(paths, device=device), log_p_RV)
        running = [[score for score, _ in sentence.running] for sentence in searching]
        scores_NW = torch.tensor(running, dtype=torch.float32, device=device)
        log_p_NWV = log_p_RV.view(len(searching), -1, vocabulary)
        scores, places = (part.tolist() for part in best_places(log_p_NWV, scores_NW, limits.candidates))
        length += 1
        left = [
            number
            for number, sentence in enumerate(searching)
            if sentence.advance(scores[number], places[number], vocabulary, length, ends)
        ]
        if not left:
            break
        parents = [sentence.parents for sentence in searching]
        if any(order != unchanged for order in parents):
            decoding.reorder(torch.tensor(parents, device=device))
        if len(left) < len(searching):
            decoding.select(torch.tensor(left, device=device))
            searching = [searching[number] for number in left]
        newest = [[node.token for _, node in sentence.running if node is not None] for sentence in searching]
        tokens_NW = torch.tensor(newest, device=device)
    return as_tensors([sentence.finished for sentence in everyone], device)


def as_tensors(finished: list[list[tuple[float, Node | None]]], device: torch.device) -> Hypotheses:
    """The finished hypotheses of each sentence, as many of each."""
    paths = [[node.path() if node is not None else [] for _, node in found] for found in finished]
    longest = max((len(path) for found in paths for path in found), default=0)
    padded = [[path + [(0, 0)] * (longest - len(path)) for path in found] for found in paths]
    return Hypotheses(
        scores=torch.tensor([[score for score, _ in found] for found in finished], device=device),
        paths=torch.tensor(padded, device=device).view(len(finished), -1, longest, 2).mT,
        lengths=torch.tensor([[len(path) for path in found] for found in paths], device=device),
    )


def likeliest(scores_RV: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    """The token of the highest score in each row, (rows, 1)."""
    return scores_RV.argmax(-1, keepdim=True)


def sampled(scores_RV: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    """A token of each row, (rows, 1), drawn by the softmax of its scores by torch's generator, as the library does."""
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
    """The likeliest token at each step, (sentences, prompt and new tokens), `padding` after the end.

    Args:
        choose: Takes another token than the likeliest.
        may_drop_finished: Whether finished sentences may be dropped from the decoding.
    """
    device, (sentences, prompt_length) = prompts_NP.device, prompts_NP.shape
    tokens_N1 = read_prompts(decoding, prompts_NP)
    allowed, ends = limits.lengths.tolist(), set(limits.end_tokens.tolist())
    found = torch.cat((prompts_NP, prompts_NP.new_full((sentences, max(allowed)), padding)), 1)
    numbers, rows = list(range(sentences)), torch.arange(sentences, device=device)
    searching = set(numbers)
    for length in range(prompt_length, found.shape[1]):
        scores_NV = decoding.step(tokens_N1)
        if process is not None:
            scores_NV = process(found[rows, :length], scores_NV.float())
        tokens_N1 = choose(scores_NV, rows, length)
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
        if may_drop_finished and len(numbers) - len(searching) >= max(1, len(numbers) * MIN_SHARE_TO_DROP):
            left = [place for place, number in enumerate(numbers) if number in searching]
            numbers, kept = [numbers[place] for place in left], torch.tensor(left, device=device)
            rows, tokens_N1 = rows[kept], tokens_N1[kept]
            decoding.select(kept)
    return found


def read_prompts(decoding: Decoding, prompts_NP: torch.Tensor) -> torch.Tensor:
    """Reads all tokens of the prompts but the last; returns the last, (sentences, 1)."""
    if prompts_NP.shape[1] > 1:
        decoding.read(prompts_NP[:, :-1])
    return prompts_NP[:, -1:]


def _no_hypotheses(sentences: int, width: int, longest: int, device: torch.device) -> Hypotheses:
    return Hypotheses(
        scores=torch.full((sentences, width), IMPOSSIBLE, device=device),
        paths=torch.zeros(sentences, width, 2, longest, dtype=torch.long, device=device),
        lengths=torch.zeros(sentences, width, dtype=torch.long, device=device),
    )
