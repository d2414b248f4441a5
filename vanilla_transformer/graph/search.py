"""Section 6.1's search as one ONNX graph, which maps the tokens of sentences to hypotheses in one call.

The encoder runs once. Then a `Loop` runs blocks of decoding steps, and each block is a `Loop` over its steps. After a
block, the sentences whose search is over leave the batch. `hypotheses.py` contains what differs between greedy search
and beam search, and the legend of the shapes in names.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from vanilla_transformer.graph.builder import model_message
from vanilla_transformer.graph.hypotheses import IMPOSSIBLE, BeamSearch, Caches, GreedySearch, Limits
from vanilla_transformer.graph.settings import Json, Settings
from vanilla_transformer.graph.transformer import Stored, TransformerGraph

# Steps per block for one sentence, and for several sentences, whose searches may end at different steps.
STEPS_OF_ONE, STEPS_OF_MANY = 16, 4
Search = GreedySearch | BeamSearch


class Blocks(NamedTuple):
    """Sizes that are the same in all blocks."""

    sentences_1: str  # The number N of all sentences.
    longest: str  # Maximum number of tokens of any hypothesis.
    steps: str  # Steps per block.
    steps_1: str


class Batch(NamedTuple):
    """The sentences that are still searched."""

    numbers_n: str  # Their numbers among all N sentences.
    lengths_n1: str  # Maximum number of tokens per hypothesis.
    mask_nS: str  # 1 on the tokens of the sources and 0 on padding.
    sources: Caches  # The keys and values of the sources.
    caches: Caches  # The keys and values of the hypotheses.
    state: Any  # A GreedyState or a BeamState.

    def values(self) -> list[str]:
        """Returns all values in order."""
        return [*self[:3], *chain(*self.sources, *self.caches), *self.state]


def write_graph(
    config: Json,
    weights: Mapping[str, Stored],
    settings: Settings,
    *,
    unchanged: Mapping[str, np.ndarray] | None = None,
) -> bytes:
    """Returns the ONNX graph of a model and its search, as the contents of a file.

    Args:
        config: The configuration of the model, as in its `config.json`.
        weights: Where each weight is stored, by its name.
        settings: The settings of the search.
        unchanged: Only for a graph that is saved: the first bytes of files next to it. If a file begins with other
            bytes, the graph finds no hypothesis. Beam size, number of hypotheses, length penalty and length limits are
            then inputs, whose defaults are the settings.
    """
    graph, is_fixed = TransformerGraph(config, weights, settings), unchanged is None

    def setting(name: str, value: float) -> str:
        """Adds a fixed value, or an input with a default."""
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
    is_greedy = is_fixed and settings.num_beams == 1
    search = GreedySearch(graph, exponent) if is_greedy else BeamSearch(graph, width, best, exponent)
    scores, tokens, lengths = _found(graph, search, lengths_N1, mask_NS, sources)
    for file, first_bytes in (unchanged or {}).items():
        is_unchanged = graph.unchanged(file, first_bytes)
        scores = graph.node("Where", is_unchanged, scores, graph.scalar(IMPOSSIBLE))
        tokens = graph.node("Where", is_unchanged, tokens, graph.scalar(settings.padding))
        lengths = graph.node("Where", is_unchanged, lengths, graph.scalar(0))
    shape = ["sentences", "hypotheses", "length"]
    graph.output("sequences", tokens, shape, "INT64")
    graph.output("scores", scores, shape[:2])
    graph.output("lengths", lengths, shape[:2], "INT64")
    return model_message(graph.finished(["sequences", "scores", "lengths"]))


def _found(
    graph: TransformerGraph, search: Search, lengths_N1: str, mask_NS: str, sources: Caches
) -> tuple[str, str, str]:
    """Adds the loop over blocks; returns the scores (N, B), tokens (N, B, T) and lengths (N, B) of hypotheses."""
    node, scalar = graph.node, graph.scalar
    sentences_1 = node("Shape", mask_NS, end=1)
    sentences = node("Squeeze", sentences_1)
    longest = node("ReduceMax", lengths_N1, keepdims=0)
    is_one = node("Equal", sentences, scalar(1))
    steps = node("Where", is_one, scalar(STEPS_OF_ONE), scalar(STEPS_OF_MANY))
    blocks = Blocks(sentences_1, longest, steps, node("Unsqueeze", steps, graph.number(0)))
    rounds = node("Div", node("Sub", node("Add", longest, steps), scalar(1)), steps)
    numbers_N = node("Range", scalar(0), sentences, scalar(1))
    no_keys = node("Concat", sentences_1, graph.number(graph.heads, 0, graph.head_width), axis=0)
    empty = node("Expand", graph.number(0.0), no_keys)
    caches = [[empty, empty] for _ in graph.decoder]
    first = Batch(numbers_N, lengths_N1, mask_NS, sources, caches, search.start(lengths_N1))
    block = graph.body()
    results = graph.loop(rounds, block, first.values(), _block(block, search, blocks))
    collected = []
    for value in results[-len(search.fills) :]:  # (blocks, N, steps, ...)
        shape = node("Concat", graph.number(-1), sentences_1, node("Shape", value, start=3), axis=0)
        collected.append(node("Reshape", node("Transpose", value, perm=[0, 2, 1, 3]), shape))
    return search.hypotheses(collected)


def _block(block: TransformerGraph, search: Search, blocks: Blocks) -> list[str]:
    """Adds a block of steps; returns whether to continue, the values of the next batch, and the collected values."""
    node, layers = block.node, range(len(block.decoder))
    number, _ = block.input("number", [], "INT64"), block.input("continues", [], "BOOL")
    batch = Batch(
        block.input("numbers", None, "INT64"),
        block.input("lengths", None, "INT64"),
        block.input("mask", None, "INT32"),
        [[block.input(f"source_{part}{layer}", None) for part in ("keys", "values")] for layer in layers],
        *_cache_and_state(block, search.types),
    )
    begin = node("Mul", number, blocks.steps)
    steps_T = node("Range", begin, node("Add", begin, blocks.steps), block.scalar(1))
    encodings_TD = block.encodings(steps_T, "decoder")
    last_n1 = node("Sub", node("Sub", batch.lengths_n1, block.number(1)), begin)
    prepared = search.prepare(block, Limits(begin, steps_T, last_n1, batch.lengths_n1, blocks.longest))

    step = block.body()
    results = _step(step, search, batch, encodings_TD, prepared)
    rounds = node("Min", node("Sub", blocks.longest, begin), blocks.steps)
    results = block.loop(rounds, step, [*chain(*batch.caches), *batch.state], results)
    caches = [results[2 * layer : 2 * layer + 2] for layer in layers]
    results = results[2 * len(layers) :]
    state = type(batch.state)(*results[: len(batch.state)])
    collected = [
        _for_all_sentences(block, batch.numbers_n, value, fill, blocks)
        for value, fill in zip(results[len(state) :], search.fills, strict=True)
    ]

    unfinished_n = node("Squeeze", search.unfinished(block, state), block.number(1))
    keep_k = node("Squeeze", node("NonZero", unfinished_n), block.number(0))
    gathered = (node("Gather", x, keep_k) for x in (*batch[:3], *chain(*batch.sources)))
    caches, state = search.keep(block, keep_k, caches, state)
    continues = node("Greater", node("Size", keep_k), block.scalar(0))
    return [continues, *gathered, *chain(*caches), *state, *collected]


def _step(step: TransformerGraph, search: Search, batch: Batch, encodings_TD: str, prepared: Any) -> list[str]:
    """Adds one step; returns whether to continue, keys and values, the new state, and the values to collect."""
    t, _ = step.input("t", [], "INT64"), step.input("continues", [], "BOOL")
    caches, state = _cache_and_state(step, search.types)
    x = step.embed(state.tokens, step.target_embedding, step.node("Gather", encodings_TD, t))
    bias = getattr(state, "bias", "")  # In greedy search, a token attends to all tokens before it.
    present: list[str] = []
    for layer, past, source in zip(step.decoder, caches, batch.sources, strict=True):
        x, keys_and_values = step.decoder_attention(x, layer, past, bias)
        x = step.feed_forward(step.cross_attention(x, layer, source, batch.mask_nS), layer)
        present += keys_and_values
    after: Any
    after, collected = search.step(step, t, step.logits(x), state, prepared)
    continues = step.node("ReduceMax", search.unfinished(step, after), keepdims=0)
    return [continues, *present, *after, *collected]


def _cache_and_state(body: TransformerGraph, types: Any) -> tuple[Caches, Any]:
    """Adds the inputs of a loop's body for the keys and values of each decoder layer, and for the state."""
    layers = range(len(body.decoder))
    caches = [[body.input(f"{part}{layer}", None) for part in ("keys", "values")] for layer in layers]
    return caches, type(types)(
        *(body.input(name, None, kind) for name, kind in zip(types._fields, types, strict=True))
    )


def _for_all_sentences(block: TransformerGraph, numbers_n: str, value_tn: str, fill: float, blocks: Blocks) -> str:
    """Expands what a block has collected to all sentences and to all steps of the block, (N, T, ...)."""
    node = block.node
    missing = node("Sub", blocks.steps_1, node("Shape", value_tn, end=1))
    pads = node("Concat", block.number(0, 0, 0, 0), missing, block.number(0), axis=0)
    padded = node("Pad", node("Transpose", value_tn, perm=[1, 0, 2]), pads, block.scalar(fill))
    shape = node("Concat", blocks.sentences_1, blocks.steps_1, node("Shape", value_tn, start=2), axis=0)
    filled = node("Expand", block.scalar(fill), shape)
    return node("ScatterND", filled, node("Unsqueeze", numbers_n, block.number(1)), padded)
