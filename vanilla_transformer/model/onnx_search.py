"""The whole search of one sentence by a small model, from tokens to hypotheses, in one call of ONNX Runtime.

Between two steps of a search there is little to compute, and calling that takes as long as a step. Here encoder, steps
and choices are one graph, in whose loop is what `greedy_search` and `beam_search` do for a sentence.

Shapes in names: S source · R running hypotheses, one at first and then W · C candidates · T steps · D d_model ·
V vocabulary.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import torch

from .onnx_layers import LayerGraph
from .packed_decoder import decoder_stack
from .packed_weights import PositionTable
from .search import IMPOSSIBLE, Limits


class Found(NamedTuple):
    """One hypothesis: its score, its tokens, and the number of the hypothesis that each was taken from."""

    score: float
    tokens: list[int]
    parents: list[int]


class SentenceSearch:
    """Greedy and beam search for one sentence, each a session that is made when it is first asked for.

    Args:
        model: As of `SessionEncoder` and `SessionDecoder`; its weights are read in place, as long as they stay there.
    """

    copied = False

    def __init__(self, model: Any) -> None:
        self.config, self.lm_head = model.config, model.lm_head
        self.encoder, self.decoder = model.model.encoder, decoder_stack(model)
        self.source_positions, self.target_positions = (
            PositionTable(stack.positional_encoding, torch.float32) for stack in (self.encoder, self.decoder)
        )
        self._arrays: dict[PositionTable, Any] = {}

    def greedy_search(self, inputs: dict[str, Any], with_cache: bool) -> tuple[list[int], list[Any]]:
        """The likeliest token, again and again, until the end.

        Args:
            inputs: Those of `inputs_of_search` and of `inputs_of_sentence`.
            with_cache: Whether keys and values are returned.

        Returns:
            Tokens, and the keys and values of all of them but the last and of the source: for each layer as
            `SessionCache.keys_and_values` has them.
        """
        session, names = self._greedy
        tokens_T1, *cache = session.run(names if with_cache else names[:1], inputs)
        parts = [torch.from_numpy(part) for part in cache]
        return tokens_T1[:, 0].tolist(), [tuple(parts[i : i + 4]) for i in range(0, len(parts), 4)]

    def beam_search(self, inputs: dict[str, Any], returned: int) -> list[Found]:
        """Section 6.1: the best hypotheses, best first.

        Args:
            inputs: Those of `inputs_of_search` and of `inputs_of_sentence`.
            returned: How many there shall be.
        """
        scores_TC, places_TC, chosen_TW = self._beam.run(None, inputs)
        scores, places, chosen = scores_TC.ravel(), places_TC.tolist(), chosen_TW.tolist()
        # Of equal ones the first, as when they are merged step by step.
        best = (-scores).argsort(kind="stable")[:returned]
        return [Found(scores.item(ending), *self._path(ending, places, chosen)) for ending in best.tolist()]

    def _path(self, ending: int, places_TC: list[Any], chosen_TW: list[Any]) -> tuple[list[int], list[int]]:
        """Tokens and parents of the hypothesis that ended with this candidate, counted over all steps."""
        path = []
        last, candidate = divmod(ending, len(places_TC[0]))
        for step in range(last, -1, -1):
            parent, token = divmod(places_TC[step][candidate], self.config.vocab_size)
            path.append((token, parent))
            candidate = chosen_TW[step - 1][parent]
        return [token for token, _ in path[::-1]], [parent for _, parent in path[::-1]]

    def inputs_of_sentence(self, ids_1S: torch.Tensor, longest: int) -> dict[str, Any]:
        """The sentence, and what the model reads in place."""
        source = ids_1S.shape[1]
        return {
            "source": ids_1S.numpy()[0],
            "source_positions": self._encodings(self.source_positions, source)[:source],
            "target_positions": self._encodings(self.target_positions, longest),
        }

    def _encodings(self, positions: PositionTable, length: int) -> Any:
        """Those of at least so many positions; what is no weight is kept."""
        kept = self._arrays.get(positions)
        if kept is None or len(kept) < length:
            kept = positions.first(length, torch.device("cpu")).detach().numpy()
            if positions.module.learned is None:
                self._arrays[positions] = kept
        return kept

    @cached_property
    def _greedy(self) -> tuple[Any, list[str]]:
        """The session and its results' names: the tokens, and each layer's own and the source's keys and values."""
        graph = LayerGraph(self.config, copied=self.copied)
        step = LayerGraph(self.config, graph)
        longest, ends_V = graph.input("longest", [], "INT64"), graph.input("ends", ["V"], "BOOL")
        sources = self._encode(graph)
        round_, tokens_R, past = self._inputs_of_step(step)
        encoding = step.node("Gather", graph.input("target_positions", ["T", "D"]), round_)
        logits_RV, present = self._advance(step, encoding, tokens_R, past, sources)
        newest_R = step.node("ArgMax", logits_RV, axis=-1, keepdims=0)
        goes_on = step.node("Not", step.node("Gather", ends_V, newest_R))
        results = [goes_on, newest_R, *present, step.node("Identity", newest_R)]
        first = [graph.input("start", [1], "INT64"), *self._nothing(graph)]
        _, *own, tokens_TR = graph.loop(longest, step, first, results)
        names = [tokens_TR]
        for number, source in enumerate(sources):
            names += [*own[2 * number : 2 * number + 2], *source]
        return graph.session(names), names

    @cached_property
    def _beam(self) -> Any:
        """The session: of each step the scores of candidates that end, all candidates, and those that run on.

        A candidate's place is one of R·V. What does not end has an impossible score. Keys and values of all that has
        run stay where they are, and a bias says which of them each hypothesis comes from.
        """
        graph = LayerGraph(self.config, copied=self.copied)
        step = LayerGraph(self.config, graph)
        longest, ends_V = graph.input("longest", [], "INT64"), graph.input("ends", ["V"], "BOOL")
        width, candidates, last_counted = (
            graph.input(name, [1], "INT64") for name in ("width", "candidates", "last_counted")
        )
        ends_all_T, may_end_C = graph.input("ends_all", ["T"], "BOOL"), graph.input("may_end", ["C"], "BOOL")
        penalties_T, bounds_T = graph.input("penalties", ["T"]), graph.input("bounds", ["T"])
        may_improve, own_bias = graph.input("may_improve", [1], "BOOL"), graph.input("own_bias", [1, 1, "W", "W"])
        sources = self._encode(graph)
        round_, tokens_R, past = self._inputs_of_step(step)
        bias, running_R1, finished_W = (step.input(name, None) for name in ("bias", "running", "finished"))
        node, zero, one = step.node, step.constant(torch.tensor([0])), step.constant(torch.tensor([1]))
        impossible, nothing = step.constant(torch.tensor(IMPOSSIBLE)), step.constant(torch.tensor(0.0))

        encoding = step.node("Gather", graph.input("target_positions", ["T", "D"]), round_)
        logits_RV, present = self._advance(step, encoding, tokens_R, past, sources, bias)
        scores_RV = node("Add", node("LogSoftmax", logits_RV, axis=-1), running_R1)
        all_scores = node("Reshape", scores_RV, step.constant(torch.tensor([-1])))
        scores_C, places_C = node("TopK", all_scores, candidates, outputs=2)
        vocabulary = step.constant(torch.tensor(self.config.vocab_size))
        parents_C, tokens_C = node("Div", places_C, vocabulary), node("Mod", places_C, vocabulary)
        ended_C = node("Or", node("Gather", ends_V, tokens_C), node("Gather", ends_all_T, round_))

        # The best that have not ended run on.
        left_C = node("Add", scores_C, node("Where", ended_C, impossible, nothing))
        left_W, chosen_W = node("TopK", left_C, width, outputs=2)
        parents_W, newest_W = (node("Gather", part, chosen_W) for part in (parents_C, tokens_C))
        next_bias = node("Concat", node("Gather", bias, parents_W, axis=2), own_bias, axis=3)

        # The best of what had ended before and of what ends now; only the best W candidates may.
        penalized_C = node("Div", scores_C, node("Gather", penalties_T, round_))
        ended_scores_C = node("Where", node("And", ended_C, may_end_C), penalized_C, impossible)
        best_W, _ = node("TopK", node("Concat", finished_W, ended_scores_C, axis=0), width, outputs=2)

        # Whether too few have ended, or the best that runs may overtake the last of those that count.
        last = node("Gather", best_W, last_counted)
        bound = node("Div", node("Slice", left_W, zero, one), node("Gather", bounds_T, round_))
        improves = node("And", may_improve, node("Greater", bound, last))
        goes_on = node("Or", node("LessOrEqual", last, impossible), improves)

        running_W1 = node("Unsqueeze", left_W, one)
        results = [goes_on, newest_W, *present, next_bias, running_W1, best_W, ended_scores_C, places_C, chosen_W]
        first = [graph.input("start", [1], "INT64"), *self._nothing(graph)]
        first += [graph.constant(torch.zeros(1, 1, 1, 1)), graph.constant(torch.zeros(1, 1))]
        first += [graph.node("Expand", graph.constant(torch.tensor([IMPOSSIBLE])), width)]
        return graph.session(graph.loop(longest, step, first, results)[-3:])

    def _encode(self, graph: LayerGraph) -> list[list[str]]:
        """The sentence to each layer's keys and values of the source."""
        source_S = graph.input("source", ["S"], "INT64")
        x = graph.embed(source_S, self.encoder.embed_tokens, graph.input("source_positions", ["S", "D"]))
        for layer in self.encoder.layers:
            x, _ = graph.self_attention(x, layer)
            x = graph.feed_forward(x, layer)
        return [graph.source_of(x, layer) for layer in self.decoder.layers]

    def _inputs_of_step(self, step: LayerGraph) -> tuple[str, str, list[list[str]]]:
        """Its number, the newest tokens, and each layer's keys and values before them."""
        number, _ = step.input("number", [], "INT64"), step.input("goes_on", [], "BOOL")
        tokens_R, layers = step.input("tokens", None, "INT64"), range(len(self.decoder.layers))
        return number, tokens_R, [[step.input(f"{part}{i}", None) for part in ("keys", "values")] for i in layers]

    def _nothing(self, graph: LayerGraph) -> list[str]:
        """Keys and values before the first step."""
        nothing = graph.constant(torch.empty(1, self.config.num_heads, 0, self.config.d_k))
        return [nothing] * (2 * len(self.decoder.layers))

    def _advance(
        self,
        step: LayerGraph,
        encoding: str,
        tokens_R: str,
        past: list[list[str]],
        sources: list[list[str]],
        bias: str = "",
    ) -> tuple[str, list[str]]:
        """The decoder's step: logits (R, V), and keys and values with those of the tokens."""
        x, found = step.embed(tokens_R, self.decoder.embed_tokens, encoding), []
        for layer, before, source in zip(self.decoder.layers, past, sources, strict=True):
            x, present = step.self_attention(x, layer, before, bias)
            found += present
            x = step.feed_forward(step.cross_attention(x, layer, source), layer)
        return step.logits(x, self.lm_head), found


class CopiedSentenceSearch(SentenceSearch):
    """The same with copies of the weights, which a beam's few rows are multiplied with twice as fast."""

    copied = True

    @staticmethod
    def weights(model: Any) -> Iterator[torch.Tensor]:
        """All, for none is read in place."""
        return model.parameters()

    def __init__(self, model: Any, dtype: torch.dtype, quantization: None = None) -> None:
        super().__init__(model)


def inputs_of_search(vocabulary: int, start: int, limits: Limits, width: int) -> dict[str, Any]:
    """What is the same for all sentences with the same limits."""
    ends_V = torch.isin(torch.arange(vocabulary), limits.end_tokens)
    inputs = {"start": torch.tensor([start]), "longest": limits.lengths[0], "ends": ends_V}
    if width > 1:
        lengths_T = torch.arange(1, int(limits.lengths) + 1, dtype=torch.float64)
        penalties_T = limits.penalty(lengths_T).float()
        least = torch.finfo(torch.float32).min
        exact = limits.early_stopping == "never" and limits.length_penalty > 0
        inputs |= {
            "width": torch.tensor([width]),
            "own_bias": torch.full((1, 1, width, width), least).masked_fill(torch.eye(width).bool(), 0.0),
            "ends_all": lengths_T == limits.lengths,
            "may_end": torch.arange(limits.candidates) < width,
            "candidates": torch.tensor([limits.candidates]),
            "last_counted": torch.tensor([limits.counted - 1]),
            "penalties": penalties_T,
            "bounds": limits.penalty(limits.horizon).expand(len(lengths_T)).float() if exact else penalties_T,
            "may_improve": torch.tensor([limits.early_stopping is not True]),
        }
    return {name: value.contiguous().numpy() for name, value in inputs.items()}


__all__ = ["CopiedSentenceSearch", "Found", "SentenceSearch", "inputs_of_search"]
