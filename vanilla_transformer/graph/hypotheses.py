"""How greedy search and beam search choose tokens at each step, and return hypotheses at the end.

Both have the same methods, in the order in which `search.py` calls them. `types` are the element types of the state
that a step passes to the next. For each value that a step collects, `fills` has a number that replaces the value after
the sentence has left the batch.

Shapes in names: N sentences · n sentences still searched · k sentences that stay after a block · S source ·
W hypotheses per sentence, one before the first step · C candidates per sentence, of which the best W may end ·
T steps · t number of a step in its block · B returned hypotheses · F final scores that decide when to stop · L keys ·
D d_model · H heads · V vocabulary.
"""

from typing import NamedTuple

import numpy as np

from vanilla_transformer.graph.transformer import LOWEST, TransformerGraph

# The score of an excluded candidate, as in transformers.
IMPOSSIBLE = -1.0e9
# A number that is larger than the number of keys.
_MANY = 1 << 31
# The keys and values of each decoder layer, (n, H, L, d_k).
Caches = list[list[str]]


class Limits(NamedTuple):
    """The steps of a block, and the limits on the length of hypotheses."""

    begin: str  # First step of the block.
    steps_T: str  # All steps of the block.
    last_n1: str  # The last step of each sentence, counted from the beginning of the block.
    lengths_n1: str  # Maximum number of tokens per hypothesis.
    longest: str  # The largest of these numbers for all N sentences.


def log_probabilities(step: TransformerGraph, logits_nWV: str, t: str, limits: Limits) -> str:
    """Returns log-probabilities after suppressing tokens and early ends, and forcing an end at the limit."""
    settings, vocabulary, node = step.settings, step.config["vocab_size"], step.node
    log_p_nWV = node("LogSoftmax", logits_nWV, axis=-1)

    def excluding(tokens: np.ndarray) -> str:
        return step.outermost.constant(np.where(tokens, -np.inf, 0.0).astype(np.float32))

    if settings.suppressed or settings.min_new_tokens > 0:
        is_suppressed_V = np.isin(np.arange(vocabulary), settings.suppressed)
        rules_V = excluding(is_suppressed_V)
        if settings.min_new_tokens > 0:
            without_ends_V = excluding(is_suppressed_V | np.isin(np.arange(vocabulary), settings.ends))
            is_early = node("Less", node("Add", t, limits.begin), step.scalar(settings.min_new_tokens))
            rules_V = node("Where", is_early, without_ends_V, rules_V)
        log_p_nWV = node("Add", log_p_nWV, rules_V)
    if settings.forced_end is not None:
        forced_V = excluding(np.isin(np.arange(vocabulary), settings.forced_end, invert=True))
        is_last_n11 = node("Unsqueeze", node("GreaterOrEqual", t, limits.last_n1), step.number(2))
        log_p_nWV = node("Where", is_last_n11, forced_V, log_p_nWV)
    return node("LogSoftmax", log_p_nWV, axis=-1) if settings.renormalized else log_p_nWV


def end_hypotheses(step: TransformerGraph, tokens: str, t: str, limits: Limits) -> str:
    """Returns True for each token that ends its hypothesis: an end token, or any token at the limit."""
    are_ends_V = np.isin(np.arange(step.config["vocab_size"]), step.settings.ends)
    is_end = step.node("Gather", step.outermost.constant(are_ends_V), tokens)
    return step.node("Or", is_end, step.node("GreaterOrEqual", t, limits.last_n1))


def penalty(graph: TransformerGraph, lengths: str, exponent: str) -> str:
    """Returns the divisor of log-probabilities: Google's ((5 + |Y|) / 6)^α, or |Y|^α as in transformers."""
    offset, divisor = (5.0, 6.0) if graph.settings.google else (0.0, 1.0)
    moved = graph.node("Add", graph.cast(lengths, "FLOAT"), graph.number(offset))
    return graph.node("Pow", graph.node("Div", moved, graph.number(divisor)), exponent)


class GreedyState(NamedTuple):
    """What a step of greedy search passes to the next."""

    tokens: str  # The newest token of each sentence, (n, 1).
    running: str  # True for each sentence that has not ended, (n, 1).


class GreedySearch:
    """The search with a beam of one, which takes the likeliest token at each step."""

    types, fills = GreedyState("INT64", "BOOL"), (-1, 0.0)

    def __init__(self, graph: TransformerGraph, exponent: str) -> None:
        self.graph, self.exponent = graph, exponent

    def start(self, lengths_N1: str) -> GreedyState:
        """Returns the token before the first one; all sentences are running."""
        graph = self.graph
        shape = graph.node("Shape", lengths_N1)
        tokens, running = (graph.node("Expand", graph.number(value), shape) for value in (graph.settings.start, True))
        return GreedyState(tokens, running)

    def prepare(self, block: TransformerGraph, limits: Limits) -> Limits:
        """Returns the limits, which are all that a step needs."""
        return limits

    def step(
        self, step: TransformerGraph, t: str, logits_nWV: str, state: GreedyState, block: Limits
    ) -> tuple[GreedyState, list[str]]:
        """Takes the likeliest token of each sentence; collects tokens (or -1 after the end) and log-probabilities."""
        node = step.node
        log_p_n1V = log_probabilities(step, logits_nWV, t, block)
        best = step.outputs_of("TopK", log_p_n1V, step.number(1), outputs=2)
        log_p_n1, tokens_n1 = (node("Squeeze", one, step.number(2)) for one in best)
        running_n1 = node("And", state.running, node("Not", end_hypotheses(step, tokens_n1, t, block)))
        written_n1 = node("Where", state.running, tokens_n1, step.scalar(-1))
        log_p_n1 = node("Where", state.running, log_p_n1, step.scalar(0.0))
        return GreedyState(tokens_n1, running_n1), [written_n1, log_p_n1]

    def unfinished(self, graph: TransformerGraph, state: GreedyState) -> str:
        """Returns True for each sentence that has not ended, (n, 1)."""
        return state.running

    def keep(
        self, block: TransformerGraph, keep_k: str, caches: Caches, state: GreedyState
    ) -> tuple[Caches, GreedyState]:
        """Returns the keys, values and state of the k sentences that stay in the batch."""
        caches = [[block.node("Gather", one, keep_k) for one in layer] for layer in caches]
        return caches, GreedyState(*(block.node("Gather", value, keep_k) for value in state))

    def hypotheses(self, collected: list[str]) -> tuple[str, str, str]:
        """Adds up log-probabilities and counts tokens."""
        graph, node = self.graph, self.graph.node
        tokens_NT1, log_p_NT1 = (node("Transpose", value, perm=[1, 0, 2]) for value in collected)
        are_tokens_NT1 = node("GreaterOrEqual", tokens_NT1, graph.scalar(0))
        lengths_N1 = node("ReduceSum", graph.cast(are_tokens_NT1, "INT64"), graph.number(1), keepdims=0)
        log_p_N1 = node("ReduceSum", log_p_NT1, graph.number(1), keepdims=0)
        tokens_NT1 = node("Where", are_tokens_NT1, tokens_NT1, graph.scalar(graph.settings.padding))
        scores_N1 = node("Div", log_p_N1, penalty(graph, lengths_N1, self.exponent))
        return scores_N1, node("Transpose", tokens_NT1, perm=[0, 2, 1]), lengths_N1


class BeamState(NamedTuple):
    """What a step of beam search passes to the next."""

    tokens: str  # The newest token of each running hypothesis, (n, W).
    bias: str  # 0 on the keys of a hypothesis's ancestors, and the lowest number on other keys, (n, 1, W, L).
    running: str  # The log-probability of each running hypothesis, (n, W, 1).
    finished: str  # The best final scores, (n, F).
    may_end: str  # Which candidates of the next step may end, (n, C); none if the sentence's search is over.


class BeamBlock(NamedTuple):
    """The values that all steps of a block share in beam search."""

    limits: Limits
    penalties_T11: str  # The penalty of a hypothesis that ends at each step.
    bounding_T11: str  # The penalty in the upper bound of what a hypothesis that runs at each step may still score.
    own_n1WW: str  # The bias between the newest tokens, each of which attends only to itself.


class BeamSearch:
    """Section 6.1's beam search.

    Within a block, keys and values are never moved. A bias hides those that are not of a hypothesis's ancestors. Beam
    size W, number of returned hypotheses B and the exponent of the length penalty are inputs of shape (1,).
    """

    types = BeamState("INT64", "FLOAT", "FLOAT", "FLOAT", "BOOL")
    fills = (IMPOSSIBLE, 0, 0)

    def __init__(self, graph: TransformerGraph, width: str, best: str, exponent: str) -> None:
        self.graph, self.width, self.best, self.exponent = graph, width, best, exponent
        settings, node = graph.settings, graph.node
        # If scores never rise, the B returned hypotheses can be certain before all W are finished.
        self.is_certain = settings.early_stopping == "never" and settings.forced_end is None
        self.counted = best if self.is_certain else width
        # Greedy search takes the likeliest token, which may end the hypothesis.
        several = node("Mul", width, graph.number(settings.min_candidates))
        self.candidates = node("Where", node("Equal", width, graph.number(1)), width, several)
        # A candidate's place among W·V, divided by V, is the number of its parent; the remainder is its token.
        self.vocabulary = graph.number(graph.config["vocab_size"])

    def start(self, lengths_N1: str) -> BeamState:
        """Returns one hypothesis per sentence, which is running."""
        graph, node = self.graph, self.graph.node
        shape = node("Shape", lengths_N1)
        zeros_N1 = node("Expand", graph.number(0.0), shape)
        finished_NF = node("Add", zeros_N1, node("Expand", graph.number(IMPOSSIBLE), self.counted))
        are_best_1C = node("Less", _range_1n(graph, self.candidates), self.width)
        return BeamState(
            tokens=node("Expand", graph.number(graph.settings.start), shape),
            bias=node("Unsqueeze", zeros_N1, graph.number(2, 3)),
            running=node("Unsqueeze", zeros_N1, graph.number(2)),
            finished=finished_NF,
            may_end=node("And", node("GreaterOrEqual", lengths_N1, graph.number(0)), are_best_1C),
        )

    def prepare(self, block: TransformerGraph, limits: Limits) -> BeamBlock:
        """Computes the penalties of all steps and the bias between the newest tokens."""
        graph, node = self.graph, block.node
        lengths_T11 = node("Unsqueeze", node("Add", limits.steps_T, block.scalar(1)), block.number(1, 2))
        bounding = lengths_T11
        if graph.settings.early_stopping == "never":
            # The log-probability of a hypothesis never rises, so a positive exponent favours the longest one.
            horizon = limits.lengths_n1 if self.is_certain else limits.longest
            bounding = node("Where", node("Greater", self.exponent, block.number(0.0)), horizon, lengths_T11)
        range_1W = _range_1n(graph, self.width)
        is_own_WW = graph.node("Equal", graph.node("Transpose", range_1W, perm=[1, 0]), range_1W)
        own_WW = graph.node("Where", is_own_WW, graph.number(0.0), graph.number(LOWEST))
        zeros_n11 = node("Unsqueeze", node("Mul", limits.lengths_n1, block.scalar(0)), block.number(2, 3))
        return BeamBlock(
            limits,
            penalty(block, lengths_T11, self.exponent),
            penalty(block, bounding, self.exponent),
            node("Add", block.cast(zeros_n11, "FLOAT"), own_WW),
        )

    def step(
        self, step: TransformerGraph, t: str, logits_nWV: str, state: BeamState, block: BeamBlock
    ) -> tuple[BeamState, list[str]]:
        """Ranks the candidates of all hypotheses; collects final scores, places, and which candidates continue."""
        node, impossible = step.node, step.number(IMPOSSIBLE)
        log_p_nWV = log_probabilities(step, logits_nWV, t, block.limits)
        log_p_nM = node("Reshape", node("Add", log_p_nWV, state.running), step.number(0, -1))
        log_p_nC, places_nC = step.outputs_of("TopK", log_p_nM, self.candidates, outputs=2)
        tokens_nC = node("Mod", places_nC, self.vocabulary)
        ended_nC = end_hypotheses(step, tokens_nC, t, block.limits)

        # The best candidates that have not ended continue.
        left_nC = node("Where", ended_nC, impossible, log_p_nC)
        running_nW, chosen_nW = step.outputs_of("TopK", left_nC, self.width, outputs=2)
        tokens_nW = node("GatherElements", tokens_nC, chosen_nW, axis=1)
        parents_nW = node("Div", node("GatherElements", places_nC, chosen_nW, axis=1), self.vocabulary)
        parents_n1W1 = node("Unsqueeze", parents_nW, step.number(1, 3))
        inherited_n1WL = node("GatherND", state.bias, parents_n1W1, batch_dims=2)

        # Those that end compete with the hypotheses that ended before.
        penalized_nC = node("Div", log_p_nC, node("Gather", block.penalties_T11, t))
        ended_scores_nC = node("Where", node("And", ended_nC, state.may_end), penalized_nC, impossible)
        all_ended = node("Concat", state.finished, ended_scores_nC, axis=1)
        finished_nF, _ = step.outputs_of("TopK", all_ended, self.counted, outputs=2)

        # Continue if fewer than F hypotheses are finished, or a running one may still become one of the best F.
        last_n1 = node("Gather", finished_nF, step.number(-1), axis=1)
        continues_n1 = node("LessOrEqual", last_n1, impossible)
        if step.settings.early_stopping is not True:
            best_n1 = node("Gather", running_nW, step.number(0), axis=1)
            bound_n1 = node("Div", best_n1, node("Gather", block.bounding_T11, t))
            continues_n1 = node("Or", continues_n1, node("Greater", bound_n1, last_n1))
        state = BeamState(
            tokens=tokens_nW,
            bias=node("Concat", inherited_n1WL, block.own_n1WW, axis=3),
            running=node("Unsqueeze", running_nW, step.number(2)),
            finished=finished_nF,
            may_end=node("And", state.may_end, continues_n1),
        )
        return state, [ended_scores_nC, places_nC, chosen_nW]

    def unfinished(self, graph: TransformerGraph, state: BeamState) -> str:
        """Returns True for each sentence that may still get better hypotheses, (n, 1)."""
        return graph.node("ReduceMax", state.may_end, graph.number(1), keepdims=1)

    def keep(self, block: TransformerGraph, keep_k: str, caches: Caches, state: BeamState) -> tuple[Caches, BeamState]:
        """Returns the keys, values and state of the k sentences that stay in the batch, without unused keys.

        All sentences keep as many keys as the sentence that uses most, so the others keep some unused keys.
        """
        node, number = block.node, block.number
        slots = node("Shape", caches[0][0], start=2, end=3)
        bias_n1WL, own_n1WW = block.outputs_of(
            "Split", state.bias, node("Concat", slots, self.width, axis=0), outputs=2, axis=3
        )
        used_nL = node("Greater", node("ReduceMax", bias_n1WL, number(1, 2), keepdims=0), number(LOWEST))
        counts_n = node("ReduceSum", block.cast(used_nL, "INT64"), number(1), keepdims=0)
        longest = node("ReduceMax", node("Concat", counts_n, number(1), axis=0), keepdims=1)
        places_L = node("Range", block.scalar(0), node("Squeeze", slots), block.scalar(1))
        # Used keys come first, in their order.
        order_nL = node("Sub", node("Where", used_nL, block.scalar(_MANY), block.scalar(0)), places_L)
        _, kept_nL = block.outputs_of("TopK", order_nL, longest, outputs=2)
        kept_n11L = node("Unsqueeze", kept_nL, number(1, 2))
        shape = node("Concat", number(1, 1), self.width, number(1), axis=0)
        bias_n1WL = node("GatherElements", bias_n1WL, node("Expand", kept_n11L, shape), axis=3)
        state = state._replace(bias=node("Concat", bias_n1WL, own_n1WW, axis=3))

        # The rows of the keys to keep among the keys of all sentences and heads, (k, H, L).
        heads = block.constant(np.arange(block.heads)[:, None])
        first_k = node("Mul", keep_k, block.scalar(block.heads))
        head_kH1 = node("Add", node("Unsqueeze", first_k, number(1, 2)), heads)
        kept_k1L = node("Unsqueeze", node("Gather", kept_nL, keep_k), number(1))
        rows_kHL = node("Add", node("Mul", head_kH1, slots), kept_k1L)
        flat = number(-1, block.head_width)
        caches = [[node("Gather", node("Reshape", one, flat), rows_kHL) for one in layer] for layer in caches]
        return caches, BeamState(*(node("Gather", value, keep_k) for value in state))

    def hypotheses(self, collected: list[str]) -> tuple[str, str, str]:
        """Returns the best hypotheses among all that have ended."""
        graph, node, number = self.graph, self.graph.node, self.graph.number
        ended_TNC, places_TNC, chosen_TNW = collected
        parents_TNC, tokens_TNC = (node(part, places_TNC, self.vocabulary) for part in ("Div", "Mod"))
        # Of two equal scores the earlier one comes first, as if the steps were merged one by one.
        ended, parents, tokens = (
            node("Reshape", node("Transpose", some, perm=[1, 0, 2]), number(0, -1))
            for some in (ended_TNC, parents_TNC, tokens_TNC)
        )
        scores_NB, best_NB = graph.outputs_of("TopK", ended, self.best, outputs=2)
        parents_NB, last_tokens_NB = (node("GatherElements", some, best_NB, axis=1) for some in (parents, tokens))
        last_NB, exists_NB = node("Div", best_NB, self.candidates), node("Greater", scores_NB, number(IMPOSSIBLE))
        lengths_NB = node("Mul", node("Add", last_NB, number(1)), graph.cast(exists_NB, "INT64"))
        steps_T = node("Range", graph.scalar(0), node("Squeeze", node("Shape", chosen_TNW, end=1)), graph.scalar(1))
        is_last_TNB = node("Equal", node("Unsqueeze", steps_T, number(1, 2)), last_NB)

        parents_TNW, tokens_TNW = (
            node("GatherElements", some, chosen_TNW, axis=2) for some in (parents_TNC, tokens_TNC)
        )
        hypotheses_TNB = _traced(graph, is_last_TNB, parents_NB, parents_TNW)
        tokens_TNB = node("GatherElements", tokens_TNW, hypotheses_TNB, axis=2)
        tokens_NBT = node("Transpose", node("Where", is_last_TNB, last_tokens_NB, tokens_TNB), perm=[1, 2, 0])
        is_token_NBT = node("Less", steps_T, node("Unsqueeze", lengths_NB, number(2)))
        return scores_NB, node("Where", is_token_NBT, tokens_NBT, number(graph.settings.padding)), lengths_NB


def _traced(graph: TransformerGraph, is_last_TNB: str, parents_NB: str, parents_TNW: str) -> str:
    """Follows hypotheses from the end to the beginning; returns their numbers among the W of each step, (T, N, B)."""
    step = graph.body()
    hypothesis_NB, is_last_NB = step.input("hypothesis", None, "INT64"), step.input("is_last", None, "BOOL")
    earlier_NB = step.node("GatherElements", step.input("parents", None, "INT64"), hypothesis_NB, axis=1)
    parent_NB = step.node("Where", is_last_NB, parents_NB, earlier_NB)
    _, hypotheses_TNB = graph.outputs_of(
        "Scan",
        *(graph.node("Sub", parents_NB, parents_NB), is_last_TNB, parents_TNW),
        outputs=2,
        num_scan_inputs=2,
        scan_input_directions=[1, 1],
        scan_output_directions=[1],
        body=step.finished([parent_NB, step.node("Identity", hypothesis_NB)]),
    )
    return hypotheses_TNB


def _range_1n(graph: TransformerGraph, count_1: str) -> str:
    """Returns the numbers from 0 to a count, which is excluded, (1, count)."""
    return graph.node("NonZero", graph.node("Expand", graph.number(1), count_1))
