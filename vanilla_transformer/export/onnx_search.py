"""Section 6.1's whole search as one ONNX graph: sentences in, hypotheses out, in one call.

Encoder, steps, choices and the stopping rule are one graph, with a `Loop` over the steps and a `Scan` back along the
winning hypotheses. A sentence whose search is over stays in the batch unchanged until all are over.

Shapes in names: N sentences · S source · W hypotheses of a sentence, one at first · C candidates · T steps · B best
hypotheses · D d_model · V vocabulary.
"""

import torch
from onnx import ModelProto

from vanilla_transformer.engine.search import IMPOSSIBLE
from vanilla_transformer.export.onnx_defaults import Defaults
from vanilla_transformer.export.onnx_graph import LayerGraph
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

_ENDLESS = 1 << 31


class SearchGraph(LayerGraph):
    """The graph of a model and its search, whose inputs and outputs the README of an export describes.

    Args:
        defaults: The settings that the graph follows; some are inputs with these defaults.
    """

    def __init__(
        self, model: VanillaTransformerForConditionalGeneration, defaults: Defaults, quantization: str | None = None
    ) -> None:
        super().__init__(model.config, quantization)
        self.defaults, self.lm_head = defaults, model.lm_head
        self.encoder, self.decoder = model.model.encoder, model.model.decoder
        # Where scores never rise, the returned hypotheses can be certain before all W are finished.
        self.certain = defaults.early_stopping == "never" and defaults.forced_end is None

    def translation(self) -> ModelProto:
        """Writes the graph; returns it as a file's model."""
        given, number = self.defaults, self.number
        tokens_NS = self.input("input_ids", ["sentences", "length"], "INT64")
        mask_NS = self.input("attention_mask", ["mask_sentences", "mask_length"], "INT64", [[1]])
        self.width = self.input("num_beams", [1], "INT64", [given.num_beams])
        self.best = self.input("num_return_sequences", [1], "INT64", [given.num_return_sequences])
        self.exponent = self.input("length_penalty", [1], "FLOAT", [float(given.length_penalty)])
        beyond = self.input("max_length_beyond_source", [1], "INT64", [given.beyond])
        most = self.input("max_new_tokens", [1], "INT64", [given.most or 0])

        shape_NS = self.node("Shape", tokens_NS)
        mask_NS = self.cast(self.node("Expand", mask_NS, shape_NS), "INT32")
        source_N1 = self.cast(self.node("ReduceSum", mask_NS, number(1), keepdims=1), "INT64")
        has_most = self.node("Greater", most, number(0))
        lengths_N1 = self.node("Where", has_most, most, self.node("Add", source_N1, beyond))
        lengths_N1 = self.node("Min", lengths_N1, number(given.positions or _ENDLESS))
        lengths_N1 = self.node("Max", lengths_N1, number(1))
        longest = self.node("ReduceMax", lengths_N1, keepdims=0)
        source_length = self.node("Squeeze", self.node("Gather", shape_NS, number(1)), number(0))
        source_LD, target_LD = self.positions(self.node("Max", longest, source_length))
        self.read(tokens_NS, mask_NS, source_LD)
        scores, tokens, lengths = self.beam(lengths_N1, longest, target_LD)
        shape = ["sentences", "hypotheses", "length"]
        self.output("sequences", tokens, shape, "INT64")
        self.output("scores", scores, shape[:2])
        self.output("lengths", lengths, shape[:2], "INT64")
        return self.model(["sequences", "scores", "lengths"])

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

    def beam(self, lengths_N1: str, longest: str, positions_LD: str) -> tuple[str, str, str]:
        """Section 6.1: finds the best hypotheses of each sentence.

        Keys and values of all running hypotheses stay in place; a bias says which of them are a hypothesis's
        ancestors. Hypotheses that have not ended have an impossible score.

        Args:
            lengths_N1: Tokens that a hypothesis may have.
            longest: The largest of these numbers.

        Returns:
            Scores (N, B), tokens (N, B, T), and lengths (N, B).
        """
        outer, given, impossible, one = self.node, self.defaults, self.number(IMPOSSIBLE), self.number(1)
        steps_T11 = outer("Range", self.scalar(1), outer("Add", longest, self.scalar(1)), self.scalar(1))
        bounding = steps_T11 = outer("Unsqueeze", steps_T11, self.number(1, 2))
        if given.early_stopping == "never":
            horizon = lengths_N1 if self.certain else outer("ReduceMax", lengths_N1, keepdims=1)
            bounding = outer("Where", outer("Greater", self.exponent, self.number(0.0)), horizon, steps_T11)
        penalties_T11, bounds = self._penalty(steps_T11), self._penalty(bounding)
        counted = self.best if self.certain else self.width
        last_step_N1 = outer("Sub", lengths_N1, one)
        ends = torch.tensor(given.ends, dtype=torch.long)
        ends_V = self.constant(torch.isin(torch.arange(self.config.vocab_size), ends))
        ends_WV = outer("Tile", ends_V, self.width)
        # Greedy search takes the likeliest token, whether or not it ends.
        many = outer("Mul", self.width, self.number(max(2, 1 + len(ends))))
        self.candidates = outer("Where", outer("Equal", self.width, one), self.width, many)
        zeros_N1 = outer("Expand", self.number(0.0), self.shape_N1)
        zeros_N111 = outer("Unsqueeze", zeros_N1, self.number(2, 3))
        range_1W = self._range(self.width)
        is_own_WW = outer("Equal", outer("Transpose", range_1W, perm=[1, 0]), range_1W)
        own_WW = outer("Where", is_own_WW, self.number(0.0), self.number(torch.finfo(torch.float32).min))
        own_N1WW = outer("Add", zeros_N111, own_WW)
        may_end_C = outer("Less", self._range(self.candidates), self.width)

        step = self.body()
        node, number, _ = step.node, step.input("number", [], "INT64"), step.input("goes_on", [], "BOOL")
        tokens_NW, layers = step.input("tokens", None, "INT64"), range(len(self.decoder.layers))
        past = [[step.input(f"{part}{layer}", None) for part in ("keys", "values")] for layer in layers]
        bias_N1WL, running_NW1, finished_NK = (step.input(name, None) for name in ("bias", "running", "finished"))
        may_end_NC = step.input("may_end", None, "BOOL")
        logits_NWV, present = self._advance(step, number, tokens_NW, past, bias_N1WL, positions_LD)
        log_p_NWV = self._allowed(step, node("LogSoftmax", logits_NWV, axis=-1), number, last_step_N1)
        scores = node("Reshape", node("Add", log_p_NWV, running_NW1), step.number(0, -1))
        scores_NC, places_NC = step.outputs_of("TopK", scores, self.candidates, outputs=2)
        ended_NC = node("Or", node("Gather", ends_WV, places_NC), node("GreaterOrEqual", number, last_step_N1))

        # The best unfinished hypotheses continue.
        left_NC = node("Where", ended_NC, impossible, scores_NC)
        left_NW, chosen_NW = step.outputs_of("TopK", left_NC, self.width, outputs=2)
        chosen_places_NW, vocabulary = node("GatherElements", places_NC, chosen_NW, axis=1), self._vocabulary(step)
        parents_NW, newest_NW = (node(part, chosen_places_NW, vocabulary) for part in ("Div", "Mod"))
        origins_N1W1 = node("Unsqueeze", parents_NW, step.number(1, 3))
        inherited_N1WL = node("GatherND", bias_N1WL, origins_N1W1, batch_dims=2)

        # The best of the hypotheses ended before and those ending now; only the best W candidates of a step may end.
        penalized_NC = node("Div", scores_NC, node("Gather", penalties_T11, number))
        ended_scores_NC = node("Where", node("And", ended_NC, may_end_NC), penalized_NC, impossible)
        best_NK, _ = step.outputs_of("TopK", node("Concat", finished_NK, ended_scores_NC, axis=1), counted, outputs=2)

        # Continue if too few have ended, or the best running one may overtake the last of those that count.
        last_N1 = node("Gather", best_NK, step.number(-1), axis=1)
        goes_on_N1 = node("LessOrEqual", last_N1, impossible)
        if given.early_stopping is not True:
            bound_N1 = node("Div", node("Gather", left_NW, step.number(0), axis=1), node("Gather", bounds, number))
            goes_on_N1 = node("Or", goes_on_N1, node("Greater", bound_N1, last_N1))
        may_end_on_NC = node("And", may_end_NC, goes_on_N1)

        results = [node("ReduceMax", may_end_on_NC, keepdims=0), newest_NW, *present]
        results += [node("Concat", inherited_N1WL, own_N1WW, axis=3), node("Unsqueeze", left_NW, step.number(2))]
        results += [best_NK, may_end_on_NC, ended_scores_NC, places_NC, chosen_NW]
        first = [outer("Expand", self.number(given.start), self.shape_N1), *self._nothing(), zeros_N111]
        first += [outer("Unsqueeze", zeros_N1, self.number(2))]
        first += [outer("Add", zeros_N1, outer("Expand", impossible, counted))]
        first += [outer("And", outer("Expand", self.number(True), self.shape_N1), may_end_C)]
        return self._paths(*self.loop(longest, step, first, results)[-3:])

    def _allowed(self, step: LayerGraph, log_p_NWV: str, number: str, last_step_N1: str) -> str:
        """Applies the model's rules to log-probabilities: forbidden tokens, a forced end at a sentence's limit."""
        if self.defaults.never:
            forbidden_V = torch.zeros(self.config.vocab_size, dtype=torch.float32)
            forbidden_V[torch.tensor(self.defaults.never)] = -torch.inf
            log_p_NWV = step.node("Add", log_p_NWV, self.constant(forbidden_V))
        if self.defaults.forced_end is not None:
            forced_V = torch.full((self.config.vocab_size,), -torch.inf, dtype=torch.float32)
            forced_V[torch.tensor(self.defaults.forced_end)] = 0.0
            last_step_N11 = self.node("Unsqueeze", last_step_N1, self.number(2))
            is_last_N11 = step.node("GreaterOrEqual", number, last_step_N11)
            log_p_NWV = step.node("Where", is_last_N11, self.constant(forced_V), log_p_NWV)
        return log_p_NWV

    def _paths(self, ended_TNC: str, places_TNC: str, chosen_TNW: str) -> tuple[str, str, str]:
        """Takes the best ended hypotheses, and traces each from its end to its beginning."""
        ended = self.node("Reshape", self.node("Transpose", ended_TNC, perm=[1, 0, 2]), self.number(0, -1))
        # Ties go to the first, as when they are merged step by step.
        scores_NB, best_NB = self.outputs_of("TopK", ended, self.best, outputs=2)
        last_NB, candidate_NB = (self.node(part, best_NB, self.candidates) for part in ("Div", "Mod"))
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
        parent_NB = step.node("Div", place_NB, self._vocabulary(step))
        token_NB = step.node("Mod", place_NB, self._vocabulary(step))
        _, tokens_NBT = self.outputs_of(
            "Scan",
            *(self.node("Sub", best_NB, best_NB), is_last_TNB, places_TNC, chosen_TNW),
            outputs=2,
            num_scan_inputs=3,
            scan_input_directions=[1] * 3,
            scan_output_directions=[1],
            scan_output_axes=[2],
            body=step.finished([parent_NB, token_NB]),
        )
        there_NBT = self.node("Less", steps_T, self.node("Unsqueeze", lengths_NB, self.number(2)))
        return scores_NB, self.node("Where", there_NBT, tokens_NBT, self.number(self.defaults.padding)), lengths_NB

    def _vocabulary(self, graph: LayerGraph) -> str:
        """Returns the V by which a candidate's place among W·V is its parent's, and modulo which it is its token."""
        return graph.number(self.config.vocab_size)

    def _penalty(self, lengths: str) -> str:
        """Returns the divisor of a log-probability: Google's ((5 + |Y|) / 6)^α, or the library's |Y|^α."""
        offset, divisor = (5.0, 6.0) if self.defaults.google else (0.0, 1.0)
        moved = self.node("Add", self.cast(lengths, "FLOAT"), self.number(offset))
        return self.node("Pow", self.node("Div", moved, self.number(divisor)), self.exponent)

    def _range(self, count: str) -> str:
        """Returns 0, 1, 2 ... below a number, (1, number)."""
        return self.node("NonZero", self.node("Expand", self.number(1), count))

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
