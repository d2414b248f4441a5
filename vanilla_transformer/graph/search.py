"""Section 6.1's whole search as one ONNX graph: sentences in, hypotheses out, in one call.

Encoder, steps, choices and the stopping rule are one graph: a `Loop` over blocks of steps, in each a `Loop` over its
steps, and a `Scan` back along the winning hypotheses. After a block, sentences whose search is over leave the batch,
and keys and values of tokens without descendants are dropped.

Shapes in names: N sentences · n those still searched · S source · W hypotheses of a sentence, one at first · C
candidates · T steps · B best hypotheses · L keys · D d_model · V vocabulary.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vanilla_transformer.graph.builder import Graph, model_message
from vanilla_transformer.graph.known import Json, Settings
from vanilla_transformer.graph.transformer import LOWEST, Stored, TransformerGraph

# Log-probability of an excluded continuation, as in the library's search.
IMPOSSIBLE = -1.0e9
# Steps of a block, of one sentence and of several, some of which may end long before others.
STEPS_OF_ONE, STEPS_OF_MANY = 16, 4
# More than there are places.
_FIRST = 1 << 31
# Names of values by what they are.
State = dict[str, str]


def write_graph(
    config: Json,
    weights: Mapping[str, Stored],
    settings: Settings,
    *,
    header: tuple[str, np.ndarray] | None = None,
) -> bytes:
    """Writes the graph of a model and its search; returns it as a file's contents.

    Args:
        config: The configuration of the model, as in its `config.json`.
        weights: The places of its weights by their names.
        settings: The settings of the search.
        header: For a graph in a file of its own, the file of weights and its first bytes; where they are others, no
            hypothesis is found. Beam, number of results, penalty and limits are then inputs with these defaults.
    """
    graph, is_fixed = TransformerGraph(config, weights, settings), header is None

    def setting(name: str, value: float) -> str:
        """Adds an input with its default, or what is fixed."""
        if is_fixed:
            return graph.number(value)
        return graph.input(name, [1], "FLOAT" if isinstance(value, float) else "INT64", [value])

    tokens_NS = graph.input("input_ids", ["sentences", "length"], "INT64")
    mask_NS = graph.input("attention_mask", ["mask_sentences", "mask_length"], "INT64", [[1]])
    width = setting("num_beams", settings.num_beams)
    best = setting("num_return_sequences", settings.num_return_sequences)
    exponent = setting("length_penalty", settings.length_penalty)
    beyond = setting("max_length_beyond_source", settings.max_length_beyond_source)
    max_new_tokens = setting("max_new_tokens", settings.max_new_tokens or 0)
    mask_NS = graph.cast(graph.node("Expand", mask_NS, graph.node("Shape", tokens_NS)), "INT32")
    lengths_N1 = graph.limits(mask_NS, beyond, max_new_tokens)
    sources = graph.read(tokens_NS, mask_NS)
    kind = GreedySearch if is_fixed and settings.num_beams == 1 else BeamSearch
    scores, tokens, lengths = kind(graph, width, best, exponent).run(lengths_N1, mask_NS, sources)
    if header is not None:
        there = graph.unchanged(*header)
        scores = graph.node("Where", there, scores, graph.scalar(IMPOSSIBLE))
        tokens = graph.node("Where", there, tokens, graph.scalar(settings.padding))
        lengths = graph.node("Where", there, lengths, graph.scalar(0))
    shape = ["sentences", "hypotheses", "length"]
    graph.output("sequences", tokens, shape, "INT64")
    graph.output("scores", scores, shape[:2])
    graph.output("lengths", lengths, shape[:2], "INT64")
    return model_message(graph.finished(["sequences", "scores", "lengths"]))


class BeamSearch:
    """Section 6.1: the best hypotheses of each sentence, in blocks of steps.

    Keys and values of all running hypotheses stay in place; a bias says which of them are a hypothesis's ancestors.
    Hypotheses that have not ended have an impossible score.

    Attributes:
        state: What a step hands to the next, with its type, beside keys and values.
        collected: What is collected of all steps: its type, and its value where a sentence has left the batch.
    """

    state = {"tokens": "INT64", "bias": "FLOAT", "running": "FLOAT", "finished": "FLOAT", "may_end": "BOOL"}
    collected: ClassVar[tuple[tuple[str, float], ...]] = (("FLOAT", IMPOSSIBLE), ("INT64", 0), ("INT64", 0))

    def __init__(self, graph: TransformerGraph, width: str, best: str, exponent: str) -> None:
        self.graph, self.settings = graph, graph.settings
        self.width, self.best, self.exponent = width, best, exponent
        # Where scores never rise, the returned hypotheses can be certain before all W are finished.
        self.certain = self.settings.early_stopping == "never" and self.settings.forced_end is None
        # By it a candidate's place among W·V is its parent's, and modulo it is its token.
        self.vocabulary = graph.number(graph.config["vocab_size"])
        self.are_ends_V = graph.constant(np.isin(np.arange(graph.config["vocab_size"]), self.settings.ends))
        self.layers = range(len(graph.decoder))

    def run(self, lengths_N1: str, mask_NS: str, sources: list[list[str]]) -> tuple[str, str, str]:
        """Adds the search; returns scores (N, B), tokens (N, B, T) and lengths (N, B).

        Args:
            lengths_N1: Tokens that a hypothesis may have.
            mask_NS: 1 on the tokens of the sources and 0 on padding.
            sources: Keys and values of each decoder layer.
        """
        graph, parts = self.graph, ("keys", "values")
        self.count = graph.node("Shape", mask_NS, end=1)
        self.longest = longest = graph.node("ReduceMax", lengths_N1, keepdims=0)
        is_one = graph.node("Equal", graph.node("Squeeze", self.count), graph.scalar(1))
        length = graph.node("Where", is_one, graph.scalar(STEPS_OF_ONE), graph.scalar(STEPS_OF_MANY))
        self.length_1 = graph.node("Unsqueeze", length, graph.number(0))
        started = graph.node("Sub", graph.node("Add", longest, length), graph.scalar(1))
        blocks = graph.node("Div", started, length)
        places_N = graph.node("Range", graph.scalar(0), graph.node("Squeeze", self.count), graph.scalar(1))
        shape = graph.node("Concat", self.count, graph.number(graph.heads, 0, graph.head_width), axis=0)
        nothing = graph.node("Expand", graph.number(0.0), shape)

        first_state = self.first(lengths_N1)

        block = graph.body()
        number, _ = block.input("number", [], "INT64"), block.input("goes_on", [], "BOOL")
        there_n, lengths_n1 = block.input("there", None, "INT64"), block.input("lengths", None, "INT64")
        mask_nS = block.input("mask", None, "INT32")
        source, caches = (
            [[block.input(f"{kind}_{part}{layer}", None) for part in parts] for layer in self.layers]
            for kind in ("source", "own")
        )
        state = {name: block.input(name, None, kind) for name, kind in self.state.items()}
        begin = block.node("Mul", number, length)
        steps_T = block.node("Range", begin, block.node("Add", begin, length), block.scalar(1))
        encodings_TD = block.encodings(steps_T, "decoder")
        self.last_n1 = block.node("Sub", block.node("Sub", lengths_n1, block.number(1)), begin)
        self.begin = begin
        self.prepare(block, steps_T, lengths_n1)

        step = block.body()
        place, _ = step.input("place", [], "INT64"), step.input("goes_on", [], "BOOL")
        own = [[step.input(f"{part}{layer}", None) for part in parts] for layer in self.layers]
        before = {name: step.input(name, None, kind) for name, kind in self.state.items()}
        x = step.embed(before["tokens"], graph.target_embedding, step.node("Gather", encodings_TD, place))
        later: list[str] = []
        for layer, past, context in zip(graph.decoder, own, source, strict=True):
            x, present = step.decoder_attention(x, layer, past, before.get("bias", ""))
            x = step.feed_forward(step.cross_attention(x, layer, context, mask_nS), layer)
            later += present
        after, collected = self.step(step, place, step.logits(x), before)
        goes_on = step.node("ReduceMax", self.going(step, dict(zip(self.state, after, strict=True))), keepdims=0)
        first = [*sum(caches, []), *state.values()]
        rounds = block.node("Min", block.node("Sub", longest, begin), length)
        results = block.loop(rounds, step, first, [goes_on, *later, *after, *collected])
        cached, rest = results[: len(later)], results[len(later) :]
        state = dict(zip(self.state, rest, strict=False))
        collected = [
            self._everywhere(block, there_n, value, fill)
            for value, (_, fill) in zip(rest[len(state) :], self.collected, strict=True)
        ]

        going_n = block.node("Squeeze", self.going(block, state), block.number(1))
        keep_k = block.node("Squeeze", block.node("NonZero", going_n), block.number(0))
        kept_nL = self.kept(block, state, cached[0])
        cached = [self._kept(block, one, keep_k, kept_nL) for one in cached]
        others = [there_n, lengths_n1, mask_nS, *sum(source, [])]
        others, own_state = ([block.node("Gather", x, keep_k) for x in some] for some in (others, state.values()))
        more = block.node("Greater", block.node("Size", keep_k), block.scalar(0))
        start = [places_N, lengths_N1, mask_NS, *sum(sources, []), *[nothing] * (2 * len(self.layers))]
        all_results = [more, *others, *cached, *own_state, *collected]
        found = graph.loop(blocks, block, [*start, *first_state], all_results)
        return self.found([self._in_order(value) for value in found[-len(collected) :]])

    def _kept(self, block: TransformerGraph, cache: str, keep_k: str, kept_nL: str) -> str:
        """Returns the keys or values of the sentences that go on, (k, H, L, K)."""
        if not kept_nL:
            return block.node("Gather", cache, keep_k)
        rows = block.once("rows", lambda: self._rows(block, cache, keep_k, kept_nL))
        flat = block.node("Reshape", cache, block.number(-1, self.graph.head_width))
        return block.node("Gather", flat, rows)

    def _rows(self, block: TransformerGraph, cache: str, keep_k: str, kept_nL: str) -> str:
        """Returns the number of each kept key among those of all sentences and heads, (k, H, L)."""
        heads = block.constant(np.arange(self.graph.heads)[:, None])
        sentences = block.node("Mul", keep_k, block.scalar(self.graph.heads))
        first = block.node("Add", block.node("Unsqueeze", sentences, block.number(1, 2)), heads)
        first = block.node("Mul", first, block.node("Shape", cache, start=2, end=3))
        kept = block.node("Unsqueeze", block.node("Gather", kept_nL, keep_k), block.number(1))
        return block.node("Add", first, kept)

    def _everywhere(self, block: TransformerGraph, there_n: str, value_Tn: str, fill: float) -> str:
        """Maps what a block has collected to all sentences and to all steps of a block, (N, T, ...)."""
        value_nT = block.node("Transpose", value_Tn, perm=[1, 0, 2])
        missing = block.node("Sub", self.length_1, block.node("Shape", value_Tn, end=1))
        pads = block.node("Concat", block.number(0, 0, 0, 0), missing, block.number(0), axis=0)
        padded = block.node("Pad", value_nT, pads, block.scalar(fill))
        width = block.node("Shape", value_Tn, start=2)
        shape = block.node("Concat", self.count, self.length_1, width, axis=0)
        everywhere = block.node("Expand", block.scalar(fill), shape)
        return block.node("ScatterND", everywhere, block.node("Unsqueeze", there_n, block.number(1)), padded)

    def _in_order(self, value: str) -> str:
        """Joins the blocks, (blocks, N, T, ...), to (all steps, N, ...)."""
        graph = self.graph
        shape = graph.node("Concat", graph.number(-1), self.count, graph.node("Shape", value, start=3), axis=0)
        return graph.node("Reshape", graph.node("Transpose", value, perm=[0, 2, 1, 3]), shape)

    def ruled(self, step: TransformerGraph, log_p_nWV: str, place: str) -> str:
        """Applies rules to log-probabilities: forbidden tokens, no early end, a forced end at the limit."""
        given, vocabulary, node = self.settings, self.graph.config["vocab_size"], step.node
        if given.suppressed or given.min_new_tokens > 0:
            rules = self.graph.constant(_ruled_out(vocabulary, given.suppressed))
            if given.min_new_tokens > 0:
                without_ends = self.graph.constant(_ruled_out(vocabulary, given.suppressed + given.ends))
                early = node("Less", node("Add", place, self.begin), step.scalar(given.min_new_tokens))
                rules = node("Where", early, without_ends, rules)
            log_p_nWV = node("Add", log_p_nWV, rules)
        if given.forced_end is not None:
            forced_V = np.where(np.isin(np.arange(vocabulary), given.forced_end), 0.0, -np.inf).astype(np.float32)
            is_last_n11 = node("Unsqueeze", node("GreaterOrEqual", place, self.last_n1), step.number(2))
            log_p_nWV = node("Where", is_last_n11, self.graph.constant(forced_V), log_p_nWV)
        if given.renormalized:
            log_p_nWV = node("LogSoftmax", log_p_nWV, axis=-1)
        return log_p_nWV

    def penalty(self, graph: Graph, lengths: str) -> str:
        """Returns the divisor of a log-probability: Google's ((5 + |Y|) / 6)^α, or the library's |Y|^α."""
        offset, divisor = (5.0, 6.0) if self.settings.google else (0.0, 1.0)
        moved = graph.node("Add", graph.cast(lengths, "FLOAT"), graph.number(offset))
        return graph.node("Pow", graph.node("Div", moved, graph.number(divisor)), self.exponent)

    def first(self, lengths_N1: str) -> list[str]:
        """Returns one hypothesis a sentence, none of which has ended."""
        graph, node, given = self.graph, self.graph.node, self.settings
        one, width = graph.number(1), self.width
        # Greedy search takes the likeliest token, whether or not it ends.
        many = node("Mul", width, graph.number(max(2, 1 + len(given.ends))))
        self.candidates = node("Where", node("Equal", width, one), width, many)
        self.counted = self.best if self.certain else width
        range_1W = self._range(width)
        is_own_WW = node("Equal", node("Transpose", range_1W, perm=[1, 0]), range_1W)
        own_WW = node("Where", is_own_WW, graph.number(0.0), graph.number(LOWEST))
        zeros_N1 = node("Expand", graph.number(0.0), node("Shape", lengths_N1))
        self.own_WW = own_WW
        self.may_end_C = node("Less", self._range(self.candidates), width)
        start = node("Expand", graph.number(given.start), node("Shape", lengths_N1))
        finished = node("Add", zeros_N1, node("Expand", graph.number(IMPOSSIBLE), self.counted))
        may_end = node("And", node("GreaterOrEqual", lengths_N1, graph.number(0)), self.may_end_C)
        zeros_N111, zeros_N11 = (node("Unsqueeze", zeros_N1, graph.number(*axes)) for axes in ((2, 3), (2,)))
        return [start, zeros_N111, zeros_N11, finished, may_end]

    def prepare(self, block: TransformerGraph, steps_T: str, lengths_n1: str) -> None:
        """Computes the penalties of all lengths, and those that bound a score."""
        lengths_T11 = block.node("Unsqueeze", block.node("Add", steps_T, block.scalar(1)), block.number(1, 2))
        bounding = lengths_T11
        if self.settings.early_stopping == "never":
            horizon = lengths_n1 if self.certain else self.longest
            bounding = block.node(
                "Where", block.node("Greater", self.exponent, block.number(0.0)), horizon, lengths_T11
            )
        self.penalties_T11, self.bounds = self.penalty(block, lengths_T11), self.penalty(block, bounding)
        zeros_n11 = block.node("Unsqueeze", block.node("Mul", lengths_n1, block.scalar(0)), block.number(2, 3))
        self.own_n1WW = block.node("Add", block.cast(zeros_n11, "FLOAT"), self.own_WW)

    def step(self, step: TransformerGraph, place: str, logits_nWV: str, state: State) -> tuple[list[str], list[str]]:
        """Ranks the continuations of all hypotheses: the best that have not ended go on."""
        node, impossible = step.node, step.number(IMPOSSIBLE)
        log_p_nWV = self.ruled(step, node("LogSoftmax", logits_nWV, axis=-1), place)
        scores = node("Reshape", node("Add", log_p_nWV, state["running"]), step.number(0, -1))
        scores_nC, places_nC = step.outputs_of("TopK", scores, self.candidates, outputs=2)
        tokens_nC = node("Mod", places_nC, self.vocabulary)
        ended_nC = node("Or", node("Gather", self.are_ends_V, tokens_nC), node("GreaterOrEqual", place, self.last_n1))

        # The best unfinished hypotheses continue.
        left_nC = node("Where", ended_nC, impossible, scores_nC)
        left_nW, chosen_nW = step.outputs_of("TopK", left_nC, self.width, outputs=2)
        newest_nW = node("GatherElements", tokens_nC, chosen_nW, axis=1)
        parents_nW = node("Div", node("GatherElements", places_nC, chosen_nW, axis=1), self.vocabulary)
        origins_n1W1 = node("Unsqueeze", parents_nW, step.number(1, 3))
        inherited_n1WL = node("GatherND", state["bias"], origins_n1W1, batch_dims=2)

        # The best of the hypotheses ended before and those ending now; only the best W candidates of a step may end.
        penalized_nC = node("Div", scores_nC, node("Gather", self.penalties_T11, place))
        ended_scores_nC = node("Where", node("And", ended_nC, state["may_end"]), penalized_nC, impossible)
        all_ended = node("Concat", state["finished"], ended_scores_nC, axis=1)
        best_nK, _ = step.outputs_of("TopK", all_ended, self.counted, outputs=2)

        # Continue if too few have ended, or the best running one may overtake the last of those that count.
        last_n1 = node("Gather", best_nK, step.number(-1), axis=1)
        goes_on_n1 = node("LessOrEqual", last_n1, impossible)
        if self.settings.early_stopping is not True:
            bound_n1 = node("Div", node("Gather", left_nW, step.number(0), axis=1), node("Gather", self.bounds, place))
            goes_on_n1 = node("Or", goes_on_n1, node("Greater", bound_n1, last_n1))
        may_end_on_nC = node("And", state["may_end"], goes_on_n1)
        bias_n1WL = node("Concat", inherited_n1WL, self.own_n1WW, axis=3)
        after = [newest_nW, bias_n1WL, node("Unsqueeze", left_nW, step.number(2)), best_nK, may_end_on_nC]
        return after, [ended_scores_nC, places_nC, chosen_nW]

    def going(self, graph: TransformerGraph, state: State) -> str:
        """Tells which sentences may still find better hypotheses."""
        return graph.node("ReduceMax", state["may_end"], graph.number(1), keepdims=1)

    def kept(self, block: TransformerGraph, state: State, keys: str) -> str:
        """Keeps the ancestors of hypotheses; a sentence with fewer than others keeps some more, which have none."""
        node, number = block.node, block.number
        slots = node("Shape", keys, start=2, end=3)
        bias_n1WL, own_n1WW = block.outputs_of(
            "Split", state["bias"], node("Concat", slots, self.width, axis=0), outputs=2, axis=3
        )
        used_nL = node("Greater", node("ReduceMax", bias_n1WL, number(1, 2), keepdims=0), number(LOWEST))
        counts_n = node("ReduceSum", block.cast(used_nL, "INT64"), number(1), keepdims=0)
        longest = node("ReduceMax", node("Concat", counts_n, number(1), axis=0), keepdims=1)
        places_L = node("Range", block.scalar(0), node("Squeeze", slots), block.scalar(1))
        order_nL = node("Sub", node("Where", used_nL, block.scalar(_FIRST), block.scalar(0)), places_L)
        _, kept_nL = block.outputs_of("TopK", order_nL, longest, outputs=2)
        kept_n11L = node("Unsqueeze", kept_nL, number(1, 2))
        shape = node("Concat", number(1, 1), self.width, number(1), axis=0)
        bias_n1WL = node("GatherElements", bias_n1WL, node("Expand", kept_n11L, shape), axis=3)
        state["bias"] = node("Concat", bias_n1WL, own_n1WW, axis=3)
        return kept_nL

    def found(self, collected: list[str]) -> tuple[str, str, str]:
        """Takes the best ended hypotheses, and traces each from its end to its beginning."""
        graph, node, number = self.graph, self.graph.node, self.graph.number
        ended_TNC, places_TNC, chosen_TNW = collected
        parents_TNC, tokens_TNC = (node(part, places_TNC, self.vocabulary) for part in ("Div", "Mod"))
        origins_TNW, newest_TNW = (
            node("GatherElements", some, chosen_TNW, axis=2) for some in (parents_TNC, tokens_TNC)
        )
        # Ties go to the first, as when they are merged step by step.
        ended, parents, tokens = (
            node("Reshape", node("Transpose", some, perm=[1, 0, 2]), number(0, -1))
            for some in (ended_TNC, parents_TNC, tokens_TNC)
        )
        scores_NB, best_NB = graph.outputs_of("TopK", ended, self.best, outputs=2)
        parents_NB, last_token_NB = (node("GatherElements", some, best_NB, axis=1) for some in (parents, tokens))
        last_NB, there_NB = node("Div", best_NB, self.candidates), node("Greater", scores_NB, number(IMPOSSIBLE))
        lengths_NB = node("Mul", node("Add", last_NB, number(1)), graph.cast(there_NB, "INT64"))
        steps_T = node("Range", graph.scalar(0), node("Squeeze", node("Shape", chosen_TNW, end=1)), graph.scalar(1))
        is_last_TNB = node("Equal", node("Unsqueeze", steps_T, number(1, 2)), last_NB)

        step = graph.body()
        hypothesis_NB, is_last_NB = step.input("hypothesis", None, "INT64"), step.input("is_last", None, "BOOL")
        earlier_NB = step.node("GatherElements", step.input("origins", None, "INT64"), hypothesis_NB, axis=1)
        came_from_NB = step.node("Where", is_last_NB, parents_NB, earlier_NB)
        _, hypotheses_TNB = graph.outputs_of(
            "Scan",
            *(node("Sub", best_NB, best_NB), is_last_TNB, origins_TNW),
            outputs=2,
            num_scan_inputs=2,
            scan_input_directions=[1, 1],
            scan_output_directions=[1],
            body=step.finished([came_from_NB, step.node("Identity", hypothesis_NB)]),
        )
        tokens_TNB = node("GatherElements", newest_TNW, hypotheses_TNB, axis=2)
        tokens_NBT = node("Transpose", node("Where", is_last_TNB, last_token_NB, tokens_TNB), perm=[1, 2, 0])
        there_NBT = node("Less", steps_T, node("Unsqueeze", lengths_NB, number(2)))
        return scores_NB, node("Where", there_NBT, tokens_NBT, number(self.settings.padding)), lengths_NB

    def _range(self, count: str) -> str:
        """Returns 0, 1, 2 ... below a number, (1, number)."""
        return self.graph.node("NonZero", self.graph.node("Expand", self.graph.number(1), count))


class GreedySearch(BeamSearch):
    """The beam of one: the likeliest token at each step."""

    state = {"tokens": "INT64", "running": "BOOL"}
    collected = (("INT64", -1), ("FLOAT", 0.0))

    def first(self, lengths_N1: str) -> list[str]:
        """Returns the token before the first, and that all sentences go on."""
        shape = self.graph.node("Shape", lengths_N1)
        return [self.graph.node("Expand", self.graph.number(value), shape) for value in (self.settings.start, True)]

    def prepare(self, block: TransformerGraph, steps_T: str, lengths_n1: str) -> None:
        """Prepares nothing."""

    def step(self, step: TransformerGraph, place: str, logits_nWV: str, state: State) -> tuple[list[str], list[str]]:
        """Takes the likeliest token of each row."""
        node, running_n1 = step.node, state["running"]
        log_p_n1V = self.ruled(step, node("LogSoftmax", logits_nWV, axis=-1), place)
        best = step.outputs_of("TopK", log_p_n1V, step.number(1), outputs=2)
        best_n1, tokens_n1 = (node("Squeeze", one, step.number(2)) for one in best)
        ended_n1 = node("Or", node("Gather", self.are_ends_V, tokens_n1), node("GreaterOrEqual", place, self.last_n1))
        going_n1 = node("And", running_n1, node("Not", ended_n1))
        written = node("Where", running_n1, tokens_n1, step.scalar(-1))
        return [tokens_n1, going_n1], [written, node("Where", running_n1, best_n1, step.scalar(0.0))]

    def going(self, graph: TransformerGraph, state: State) -> str:
        """Tells which rows have not ended."""
        return state["running"]

    def kept(self, block: TransformerGraph, state: State, keys: str) -> str:
        """Keeps all: each token descends from all before it."""
        return ""

    def found(self, collected: list[str]) -> tuple[str, str, str]:
        """Adds up log-probabilities and tokens."""
        graph, node = self.graph, self.graph.node
        tokens_NT1, log_p_NT1 = (node("Transpose", value, perm=[1, 0, 2]) for value in collected)
        are_tokens = node("GreaterOrEqual", tokens_NT1, graph.scalar(0))
        lengths_N1 = node("ReduceSum", graph.cast(are_tokens, "INT64"), graph.number(1), keepdims=0)
        scores_N1 = node("ReduceSum", log_p_NT1, graph.number(1), keepdims=0)
        tokens_NT1 = node("Where", are_tokens, tokens_NT1, graph.scalar(self.settings.padding))
        scores_N1 = node("Div", scores_N1, self.penalty(graph, lengths_N1))
        return scores_N1, node("Transpose", tokens_NT1, perm=[0, 2, 1]), lengths_N1


def _ruled_out(vocabulary: int, tokens: tuple[int, ...]) -> np.ndarray:
    """Returns minus infinity at the tokens and 0 elsewhere."""
    return np.where(np.isin(np.arange(vocabulary), tokens), -np.inf, 0.0).astype(np.float32)
