"""Section 6.1's whole search as one ONNX graph: sentences in, hypotheses out, in one call.

Encoder, steps, choices and the stopping rule are one graph, with a `Loop` over the steps and a `Scan` back along the
winning hypotheses. A sentence whose search is over stays in the batch unchanged until all are over.

Shapes in names: N sentences · S source · W hypotheses of a sentence, one at first · C candidates · T steps · B best
hypotheses · D d_model · V vocabulary.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from vanilla_transformer.engine.known import unknown_to_export
from vanilla_transformer.engine.onnx_graph import ACTIVATIONS, LayerGraph
from vanilla_transformer.engine.search import IMPOSSIBLE, Hypotheses, Limits

# The oldest version of ONNX Runtime that the graphs were tried with.
OLDEST_VERSION = (1, 31)
# Largest model, in parameters: a session multiplies on one thread, and large weights no faster than torch. The second
# limit is on parameters times rows.
LARGEST_MODEL = 1 << 23
MULTIPLICATIONS = 1 << 26
# Changes the log-probabilities of a step, given the step, their name and the name of the step's number.
Change = Callable[[LayerGraph, str, str], str]


class Rules(NamedTuple):
    """The `Limits` of a beam as names in a graph: vectors of one number, except the first two, (N, 1).

    Width is W, `candidates` C and `best` B; `may_improve` tells whether running hypotheses are compared at all.
    """

    lengths_N1: str
    horizon_N1: str
    width: str
    candidates: str
    counted: str
    best: str
    exponent: str
    offset: str
    divisor: str
    exact: str
    may_improve: str


class SearchGraph(LayerGraph):
    """The graph of a search under construction.

    Args:
        model: An encoder-decoder.
        quantization: None, or "int8" for 8-bit matrices.
    """

    def __init__(self, model: Any, quantization: str | None = None) -> None:
        super().__init__(model.config, quantization)
        self.lm_head = model.lm_head
        self.encoder, self.decoder = model.model.encoder, model.model.decoder

    def positions(self, length: str) -> tuple[str, str]:
        """Section 3.5: tables of `length` or more source and target positions; learned ones may end earlier."""
        learned = [stack.positional_encoding.learned for stack in (self.encoder, self.decoder)]
        if learned[0] is not None:
            return self.constant(learned[0].weight.float()), self.constant(learned[1].weight.float())
        exponents = torch.arange(0, self.config.d_model, 2, dtype=torch.float32) / self.config.d_model
        places_L = self.node("Range", self.scalar(0), length, self.scalar(1))
        places_L1 = self.node("Unsqueeze", self.cast(places_L, "FLOAT"), self.number(1))
        angles = self.node("Mul", places_L1, self.constant(10000.0**-exponents))
        pairs = [self.node("Unsqueeze", self.node(part, angles), self.number(2)) for part in ("Sin", "Cos")]
        table = self.node("Reshape", self.node("Concat", *pairs, axis=2), self.number(0, self.config.d_model))
        return table, table

    def read(self, tokens_NS: str, mask_NS: str, positions_LD: str) -> None:
        """Adds the encoder, and each decoder layer's keys and values of its output; the mask is 32-bit."""
        self.mask_NS = mask_NS
        places_NS = self.node("CumSum", mask_NS, self.scalar(1), exclusive=1)
        x = self.embed(tokens_NS, self.encoder.embed_tokens, self.node("Gather", positions_LD, places_NS))
        for layer in self.encoder.layers:
            x = self.feed_forward(self.self_attention(x, layer, mask_NS)[0], layer)
        self.source = self.keys_and_values(x, self.decoder.layers)
        self.shape_N1 = self.node("Concat", self.node("Shape", tokens_NS, end=1), self.number(1), axis=0)

    def greedy(self, longest: str, start: str, ends_V: str, positions_LD: str) -> str:
        """Takes the likeliest token repeatedly until all sentences have ended; returns tokens, (T, N, 1)."""
        step, number, tokens_N1, past = self._step()
        live_N1 = step.input("live", None, "BOOL")
        logits_N1V, present = self._advance(step, number, tokens_N1, past, "", positions_LD)
        newest_N1 = step.node("ArgMax", logits_N1V, axis=-1, keepdims=0)
        live_on_N1 = step.node("And", live_N1, step.node("Gather", self.node("Not", ends_V), newest_N1))
        tokens, live = (self.node("Expand", part, self.shape_N1) for part in (start, self.number(True)))
        goes_on, collected_N1 = step.node("ReduceMax", live_on_N1, keepdims=0), step.node("Identity", newest_N1)
        results = [goes_on, newest_N1, *present, live_on_N1, collected_N1]
        return self.loop(longest, step, [tokens, *self._nothing(), live], results)[-1]

    def beam(
        self,
        rules: Rules,
        start: str,
        ends_V: str,
        positions_LD: str,
        change: Change | None = None,
        padding: int | None = None,
    ) -> tuple[str, str, str, str]:
        """Section 6.1: finds the best hypotheses of each sentence.

        Keys and values of all running hypotheses stay in place; a bias says which of them are a hypothesis's
        ancestors. Hypotheses that have not ended have an impossible score.

        Returns:
            Scores (N, B), tokens and parents (N, B, T), and lengths (N, B).
        """
        outer, impossible, one = self.node, self.number(IMPOSSIBLE), self.number(1)
        longest = outer("ReduceMax", rules.lengths_N1, keepdims=0)
        steps_T11 = outer("Range", self.scalar(1), outer("Add", longest, self.scalar(1)), self.scalar(1))
        steps_T11 = outer("Unsqueeze", steps_T11, self.number(1, 2))
        penalties_T11 = self._penalty(steps_T11, rules)
        bounds_TN1 = self._penalty(outer("Where", rules.exact, rules.horizon_N1, steps_T11), rules)
        last_step_N1 = outer("Sub", rules.lengths_N1, one)
        ends_WV = outer("Tile", ends_V, rules.width)
        zeros_N1 = outer("Expand", self.number(0.0), self.shape_N1)
        zeros_N111 = outer("Unsqueeze", zeros_N1, self.number(2, 3))
        range_1W = self._range(rules.width)
        is_own_WW = outer("Equal", outer("Transpose", range_1W, perm=[1, 0]), range_1W)
        own_WW = outer("Where", is_own_WW, self.number(0.0), self.number(torch.finfo(torch.float32).min))
        own_N1WW = outer("Add", zeros_N111, own_WW)
        may_end_C = outer("Less", self._range(rules.candidates), rules.width)

        step, number, tokens_NW, past = self._step()
        bias_N1WL, running_NW1, finished_NK = (step.input(name, None) for name in ("bias", "running", "finished"))
        may_end_NC = step.input("may_end", None, "BOOL")
        node = step.node
        logits_NWV, present = self._advance(step, number, tokens_NW, past, bias_N1WL, positions_LD)
        log_p_NWV = node("LogSoftmax", logits_NWV, axis=-1)
        if change is not None:
            log_p_NWV = change(step, log_p_NWV, number)
        scores = node("Reshape", node("Add", log_p_NWV, running_NW1), step.number(0, -1))
        scores_NC, places_NC = node("TopK", scores, rules.candidates, outputs=2)
        ended_NC = node("Or", node("Gather", ends_WV, places_NC), node("GreaterOrEqual", number, last_step_N1))

        # The best unfinished hypotheses continue.
        left_NC = node("Where", ended_NC, impossible, scores_NC)
        left_NW, chosen_NW = node("TopK", left_NC, rules.width, outputs=2)
        parents_NW, newest_NW = self._parted(step, node("GatherElements", places_NC, chosen_NW, axis=1))
        origins_N1W1 = node("Unsqueeze", parents_NW, step.number(1, 3))
        inherited_N1WL = node("GatherND", bias_N1WL, origins_N1W1, batch_dims=2)

        # The best of the hypotheses ended before and those ending now; only the best W candidates of a step may end.
        penalized_NC = node("Div", scores_NC, node("Gather", penalties_T11, number))
        ended_scores_NC = node("Where", node("And", ended_NC, may_end_NC), penalized_NC, impossible)
        best_NK, _ = node("TopK", node("Concat", finished_NK, ended_scores_NC, axis=1), rules.counted, outputs=2)

        # Continue if too few have ended, or the best running one may overtake the last of those that count.
        last_N1 = node("Gather", best_NK, step.number(-1), axis=1)
        bound_N1 = node("Div", node("Gather", left_NW, step.number(0), axis=1), node("Gather", bounds_TN1, number))
        improves_N1 = node("And", rules.may_improve, node("Greater", bound_N1, last_N1))
        goes_on_N1 = node("Or", node("LessOrEqual", last_N1, impossible), improves_N1)
        may_end_on_NC = node("And", may_end_NC, goes_on_N1)

        results = [node("ReduceMax", may_end_on_NC, keepdims=0), newest_NW, *present]
        results += [node("Concat", inherited_N1WL, own_N1WW, axis=3), node("Unsqueeze", left_NW, step.number(2))]
        results += [best_NK, may_end_on_NC, ended_scores_NC, places_NC, chosen_NW]
        first = [outer("Expand", start, self.shape_N1), *self._nothing(), zeros_N111]
        first += [outer("Unsqueeze", zeros_N1, self.number(2))]
        first += [outer("Add", zeros_N1, outer("Expand", impossible, rules.counted))]
        first += [outer("And", outer("Expand", self.number(True), self.shape_N1), may_end_C)]
        return self._paths(self.loop(longest, step, first, results)[-3:], rules, padding)

    def _parted(self, graph: LayerGraph, places: str) -> tuple[str, str]:
        """Returns the parents and tokens of candidates, which are places among W·V."""
        vocabulary = graph.number(self.config.vocab_size)
        return graph.node("Div", places, vocabulary), graph.node("Mod", places, vocabulary)

    def _paths(self, kept: list[str], rules: Rules, padding: int | None) -> tuple[str, str, str, str]:
        """Takes the best ended hypotheses, and traces each from its end to its beginning."""
        ended_TNC, places_TNC, chosen_TNW = kept
        ended = self.node("Reshape", self.node("Transpose", ended_TNC, perm=[1, 0, 2]), self.number(0, -1))
        # Ties go to the first, as when they are merged step by step.
        scores_NB, best_NB = self.node("TopK", ended, rules.best, outputs=2)
        last_NB, candidate_NB = (self.node(part, best_NB, rules.candidates) for part in ("Div", "Mod"))
        there_NB = self.node("Greater", scores_NB, self.number(IMPOSSIBLE))
        lengths_NB = self.node("Mul", self.node("Add", last_NB, self.number(1)), self.cast(there_NB, "INT64"))
        steps_T = self.node("Squeeze", self._range(self.node("Shape", chosen_TNW, end=1)), self.number(0))
        is_last_TNB = self.node("Equal", self.node("Unsqueeze", steps_T, self.number(1, 2)), last_NB)

        step = self.body()
        hypothesis_NB, is_last_NB = step.input("hypothesis", None, "INT64"), step.input("is_last", None, "BOOL")
        places_NC, chosen_NW = step.input("places", None, "INT64"), step.input("chosen", None, "INT64")
        went_on_NB = step.node("GatherElements", chosen_NW, hypothesis_NB, axis=1)
        taken_NB = step.node("Where", is_last_NB, candidate_NB, went_on_NB)
        place_NB = step.node("GatherElements", places_NC, taken_NB, axis=1)
        parent_NB = step.node("Div", place_NB, step.number(self.config.vocab_size))
        _, places_NBT = self.node(
            "Scan",
            *(self.node("Sub", best_NB, best_NB), is_last_TNB, places_TNC, chosen_TNW),
            outputs=2,
            num_scan_inputs=3,
            scan_input_directions=[1] * 3,
            scan_output_directions=[1],
            scan_output_axes=[2],
            body=step.finished([parent_NB, place_NB]),
        )
        parents_NBT, tokens_NBT = self._parted(self, places_NBT)
        if padding is not None:
            there_NBT = self.node("Less", steps_T, self.node("Unsqueeze", lengths_NB, self.number(2)))
            tokens_NBT = self.node("Where", there_NBT, tokens_NBT, self.number(padding))
        return scores_NB, tokens_NBT, parents_NBT, lengths_NB

    def _penalty(self, lengths: str, rules: Rules) -> str:
        """Returns the divisor of a log-probability: Google's ((5 + |Y|) / 6)^α, or the library's |Y|^α."""
        moved = self.node("Add", self.cast(lengths, "FLOAT"), rules.offset)
        return self.node("Pow", self.node("Div", moved, rules.divisor), rules.exponent)

    def _range(self, count: str) -> str:
        """Returns 0, 1, 2 ... below a number, (1, number)."""
        return self.node("NonZero", self.node("Expand", self.number(1), count))

    def _step(self) -> tuple[LayerGraph, str, str, list[list[str]]]:
        """Returns a step: its graph, its number, the newest tokens, and each layer's earlier keys and values."""
        step = self.body()
        number, _ = step.input("number", [], "INT64"), step.input("goes_on", [], "BOOL")
        tokens_NW, layers = step.input("tokens", None, "INT64"), range(len(self.decoder.layers))
        past = [[step.input(f"{part}{layer}", None) for part in ("keys", "values")] for layer in layers]
        return step, number, tokens_NW, past

    def _nothing(self) -> list[str]:
        """Returns each layer's empty keys and values before the first step."""
        count = self.node("Shape", self.mask_NS, end=1)
        shape = self.node("Concat", count, self.number(self.config.num_heads, 0, self.head_width), axis=0)
        return [self.node("Expand", self.number(0.0), shape)] * (2 * len(self.source))

    def _advance(
        self, step: LayerGraph, number: str, tokens_NW: str, past: list[list[str]], bias: str, positions_LD: str
    ) -> tuple[str, list[str]]:
        """Runs the decoder's step: logits (N, W, V), and keys and values including the new tokens'."""
        encoding = step.node("Gather", positions_LD, number)
        x, found = step.embed(tokens_NW, self.decoder.embed_tokens, encoding), []
        for layer, before, source in zip(self.decoder.layers, past, self.source, strict=True):
            x, present = step.self_attention(x, layer, bias=bias, past=before)
            found += present
            x = step.feed_forward(step.cross_attention(x, layer, source, self.mask_NS), layer)
        return step.logits(x, self.lm_head), found


class GraphSearch:
    """Greedy and beam search of a model, each an ONNX Runtime session with the weights at its first use.

    Args:
        model: An encoder-decoder.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._vocabulary = model.config.vocab_size
        self._positions = [stack.positional_encoding for stack in (model.model.encoder, model.model.decoder)]
        # Embeddings are looked up, and multiply only as the output projection.
        self.size = sum(weight.numel() for name, weight in model.named_parameters() if "embed" not in name)
        self._table = np.empty((0, 0), dtype=np.float32)
        self._sessions: dict[Any, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """Returns the searches of a model; None if graphs do not compute it, or not faster than torch."""
        if model.device.type != "cpu" or unknown_to_export(model, ACTIVATIONS) is not None:
            return None
        searches = cls(model)
        # ONNX Runtime is imported last, for the models that it is used for.
        return searches if searches.size <= LARGEST_MODEL and _is_installed() else None

    def suits(self, ids_NS: torch.Tensor, prompts: torch.Tensor) -> bool:
        """Tells whether graphs are fastest for these sources and hypotheses, and have all of their tokens and places.

        Out of range they fail without a reason, or take what is not meant, where torch says what is wrong.
        """
        learned = self._positions[0].learned
        if ids_NS.shape[1] == 0 or (learned is not None and ids_NS.shape[1] > len(learned.weight)):
            return False
        in_range = all(part.min() >= 0 and part.max() < self._vocabulary for part in (ids_NS, prompts))
        return in_range and self.size * len(prompts) * min(torch.get_num_threads(), 2) <= MULTIPLICATIONS

    def greedy(
        self, ids_NS: torch.Tensor, mask_NS: torch.Tensor, start: int, limits: Limits
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the likeliest token at each step: tokens (N, T), and the number of them in each sentence, (N,)."""
        longest = max(limits.lengths.tolist())
        inputs = self._inputs(ids_NS, mask_NS, limits, longest)
        inputs |= {"start": np.array([start]), "longest": np.array(longest)}
        tokens_NT = torch.from_numpy(self._run(self._greedy_graph, inputs)[0][..., 0].T)
        steps = tokens_NT.shape[1]
        if len(tokens_NT) == 1:
            return tokens_NT, torch.tensor([steps])
        ended_NT = torch.isin(tokens_NT, limits.end_tokens)
        lengths_N = torch.where(ended_NT.any(1), ended_NT.int().argmax(1) + 1, steps)
        return tokens_NT, lengths_N.minimum(limits.lengths)

    def beam(self, ids_NS: torch.Tensor, mask_NS: torch.Tensor, start: int, limits: Limits, width: int) -> Hypotheses:
        """Section 6.1: finds the `width` best hypotheses of each sentence."""
        lengths = limits.lengths.tolist()
        inputs = self._inputs(ids_NS, mask_NS, limits, max(lengths))
        inputs |= {
            "lengths": np.array((lengths, limits.horizon.tolist())).T,
            "numbers": np.array((start, width, limits.candidates, limits.counted)),
            "penalty": np.array((limits.length_penalty, limits.offset, limits.divisor), dtype=np.float32),
            "truths": np.array((limits.is_exact, limits.early_stopping is not True)),
        }
        scores, tokens, parents, found = map(torch.from_numpy, self._run(self._beam_graph, inputs))
        return Hypotheses(scores, torch.stack((tokens, parents), 2), found)

    def _run(self, write: Callable[[SearchGraph], Any], inputs: dict[str, Any]) -> list[Any]:
        """Runs a graph, which is written and loaded on first use."""
        with self._lock:
            if write not in self._sessions:
                with torch.no_grad():
                    self._sessions[write] = _session(write(SearchGraph(self._model)))
        return self._sessions[write].run(None, inputs)

    def _inputs(self, ids_NS: torch.Tensor, mask_NS: torch.Tensor, limits: Limits, longest: int) -> dict[str, Any]:
        inputs = {"tokens": ids_NS.numpy(), "mask": mask_NS.int().numpy(), "ends": self._ends(limits)}
        if self._positions[0].learned is None:
            inputs["positions"] = self._encodings(max(longest, ids_NS.shape[1]))
        return inputs

    def _ends(self, limits: Limits) -> Any:
        """Marks the vocabulary's tokens that end a hypothesis."""
        return torch.isin(torch.arange(self._vocabulary), limits.end_tokens).numpy()

    def _encodings(self, length: int) -> Any:
        """Returns encodings of `length` or more positions; they are not weights."""
        if len(self._table) < length:
            self._table = self._positions[0](max(length, 2 * len(self._table))).detach().float().numpy()
        return self._table

    def _greedy_graph(self, graph: SearchGraph) -> Any:
        source, target, ends_V = self._begin(graph)
        start, longest = graph.input("start", [1], "INT64"), graph.input("longest", [], "INT64")
        return graph.model([graph.greedy(longest, start, ends_V, target)])

    def _beam_graph(self, graph: SearchGraph) -> Any:
        source, target, ends_V = self._begin(graph)
        lengths = graph.node("Split", graph.input("lengths", ["N", 2], "INT64"), outputs=2, axis=1, num_outputs=2)
        start, width, candidates, counted = graph.node(
            "Split", graph.input("numbers", [4], "INT64"), outputs=4, num_outputs=4
        )
        penalty = graph.node("Split", graph.input("penalty", [3]), outputs=3, num_outputs=3)
        truths = graph.node("Split", graph.input("truths", [2], "BOOL"), outputs=2, num_outputs=2)
        rules = Rules._make([*lengths, width, candidates, counted, width, *penalty, *truths])
        return graph.model(list(graph.beam(rules, start, ends_V, target)))

    def _begin(self, graph: SearchGraph) -> tuple[str, str, str]:
        """Writes the encoder; returns the names of both position tables and of the end tokens."""
        if self._positions[0].learned is None:
            source = target = graph.input("positions", ["L", "D"])
        else:
            source, target = (graph.constant(module.learned.weight.float()) for module in self._positions)
        graph.read(graph.input("tokens", ["N", "S"], "INT64"), graph.input("mask", ["N", "S"], "INT32"), source)
        return source, target, graph.input("ends", ["V"], "BOOL")


def _is_installed() -> bool:
    """Tells whether `onnx` and a new enough ONNX Runtime are installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return False
    return tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= OLDEST_VERSION


def _session(model: Any) -> Any:
    """Loads a graph for one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Searching for fusions at each building costs more than they save.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


__all__ = ["GraphSearch", "Rules", "SearchGraph"]
