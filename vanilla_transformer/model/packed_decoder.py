"""The decoder of section 3 for search: one more position of many hypotheses at a time, exact.

`forward` of the decoder is written to be read and trained; this is written to be called at every step: weights are
packed for the processor once, the source's keys and values are computed once per sentence instead of once per
hypothesis, and a sentence's hypotheses share one cache. Reordering hypotheses moves no keys or values: a mask lets
each attend to its own ancestors.

Shapes in names: N sentences · W hypotheses of a sentence · R = N·W rows · S source · L slots of the cache ·
D d_model · H heads · K d_k (keys) or d_v (values) · V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from .packed_weights import PackedWeights

# The cache grows by so many positions at a time: the fewer, the sooner slots without descendants are freed; the more,
# the less is copied.
POSITIONS_AT_A_TIME = 8


class PackedDecoder:
    """The decoder's weights packed for a search, and its step.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`, whose decoder and output projection are used.
        dtype: Type of the activations, and of the weights unless they are quantized.
        quantization: None, or "int8"; see `PackedWeights`.
    """

    @staticmethod
    def weights(model: Any) -> Iterator[torch.Tensor]:
        """The weights that are packed, and packed again when they change; the embedding is read in place."""
        yield from model.model.decoder.layers.parameters()
        yield from model.lm_head.parameters()

    def __init__(self, model: Any, dtype: torch.dtype, quantization: str | None = None) -> None:
        config, decoder = model.config, model.model.decoder
        pack = PackedWeights(dtype, quantization, few_rows=True)
        self.dtype = pack.activations
        # Processors multiply small matrices of float32 as fast as of bfloat16, and their softmax needs no detour.
        on_cpu = model.lm_head.weight.device.type == "cpu"
        self.cache_dtype = torch.float32 if on_cpu else self.dtype
        self.num_heads, self.d_k, self.d_v = config.num_heads, config.d_k, config.d_v
        self.scale = config.d_model**0.5
        self.decoder = decoder
        self.layers = [_Layer(layer, pack) for layer in decoder.layers]
        self.source_projections = [
            PackedWeights(dtype, quantization).fused_linear(layer.cross_attention.k_proj, layer.cross_attention.v_proj)
            for layer in decoder.layers
        ]
        self.project_to_vocabulary = pack.linear(model.lm_head.weight, model.lm_head.bias)

    def start(self, encoded_NSD: torch.Tensor, source_mask_NS: torch.Tensor | None) -> "DecoderCache":
        """The cache before the first step: each layer's keys and values of the source.

        Args:
            encoded_NSD: The encoder's output, (sentences, source length, d_model).
            source_mask_NS: 1 on source tokens, 0 on padding; None where there is no padding.
        """
        encoded_NSD = encoded_NSD.to(self.dtype)
        rows_D = encoded_NSD.flatten(0, 1)
        sources = []
        for project in self.source_projections:
            keys, values = project(rows_D).split((self.num_heads * self.d_k, self.num_heads * self.d_v), dim=-1)
            sources.append((self._cached(keys, len(encoded_NSD)), self._cached(values, len(encoded_NSD))))
        mask = None
        if source_mask_NS is not None and not source_mask_NS.all():
            mask = _additive(source_mask_NS[:, None, None, :].bool(), self.cache_dtype)
        return DecoderCache(self, sources, mask)

    def step(self, tokens_NW: torch.Tensor, position: int, cache: "DecoderCache") -> torch.Tensor:
        """Logits (sentences · hypotheses, vocabulary) of what follows the tokens, which stand at `position`.

        The tokens' keys and values are added to the cache.
        """
        encoding = cache.encoding_of(position)
        x = F.embedding(tokens_NW.flatten(), self.decoder.embed_tokens.weight).to(self.dtype) * self.scale + encoding
        slots = cache.allocate(tokens_NW.shape[1])
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x).split((layer.keys_width, layer.keys_width, layer.values_width), dim=-1)
            keys, values = cache.update(number, slots, k, v)
            x = layer.self_norm(x + layer.self_out(self._attend(q, keys, values, cache.attention_bias_NWL)))
            keys, values = cache.sources[number]
            x = layer.cross_norm(
                x + layer.cross_out(self._attend(layer.source_query(x), keys, values, cache.source_mask))
            )
            x = layer.feed_norm(x + layer.second(layer.first(x)))
        return self.project_to_vocabulary(x)

    def heads(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """(N·L, H·K) to (N, H, L, K), a view."""
        split = projected_RD.view(sentences, -1, self.num_heads, projected_RD.shape[1] // self.num_heads)
        return split.transpose(1, 2)

    def _cached(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """(N·L, H·K) to a contiguous (N, H, L, K) in the type of the cache."""
        return self.heads(projected_RD, sentences).to(self.cache_dtype).contiguous()

    def _attend(
        self,
        q_RD: torch.Tensor,
        keys_NHLK: torch.Tensor,
        values_NHLK: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Section 3.2.1 for all heads: a sentence's hypotheses are the queries; 1 / √d_k is in their weights."""
        sentences, heads = keys_NHLK.shape[:2]
        q_NHWK = self.heads(q_RD, sentences).to(self.cache_dtype)
        scores = torch.bmm(q_NHWK.flatten(0, 1), keys_NHLK.flatten(0, 1).mT)
        if mask is not None:
            scores.view(sentences, heads, q_NHWK.shape[2], -1).add_(mask)
        # The library's attention, too, takes the softmax of bfloat16 in float32.
        weights = scores.softmax(-1, dtype=torch.float32).to(values_NHLK.dtype)
        attended = torch.bmm(weights, values_NHLK.flatten(0, 1)).unflatten(0, (sentences, heads))
        return attended.transpose(1, 2).reshape(q_RD.shape[0], heads * self.d_v).to(self.dtype)


class DecoderCache:
    """Keys and values of a batch's sources and of its running hypotheses, which share their ancestors.

    A step takes one slot for each hypothesis of a sentence. `attention_bias_NWL` is added to attention scores: zero in
    slots of a hypothesis's ancestors, minus infinity elsewhere; None while there is one hypothesis.
    """

    def __init__(
        self,
        decoder: PackedDecoder,
        sources: list[tuple[torch.Tensor, torch.Tensor]],
        source_mask: torch.Tensor | None,
    ) -> None:
        self.decoder, self.sources, self.source_mask = decoder, sources, source_mask
        self.used = 0
        # A tensor for each layer: the system maps and unmaps very large ones page by page.
        self.keys = [keys[:, :, :0] for keys, _ in sources]
        self.values = [values[:, :, :0] for _, values in sources]
        self.capacity = 0
        self.ancestor_mask: torch.Tensor | None = None  # (N, W, capacity), True where the slot is an ancestor's.
        self.attention_bias_NWL: torch.Tensor | None = None
        self._encodings = torch.empty(0)

    @property
    def sentences(self) -> int:
        """How many are still being searched."""
        return len(self.sources[0][0])

    def encoding_of(self, position: int) -> torch.Tensor:
        """Section 3.5's encoding of a position, (d_model,)."""
        if position >= len(self._encodings):
            table = self.decoder.decoder.positional_encoding
            longest = 2 * position + 16
            if table.learned is not None:
                longest = max(min(longest, table.learned.num_embeddings), position + 1)
            self._encodings = table(longest, device=self._device).to(self.decoder.dtype)
        return self._encodings[position]

    def allocate(self, width: int) -> slice:
        """The slots for one more position of `width` hypotheses a sentence; each may attend to its own."""
        if self.used + width > self.capacity:
            self._compact(width)
        slots = slice(self.used, self.used + width)
        self.used = slots.stop
        if self.ancestor_mask is None and width > 1:
            # Until now there was one hypothesis, the child of all before.
            self.ancestor_mask = torch.zeros(
                self.sentences, width, self.capacity, dtype=torch.bool, device=self._device
            )
            self.ancestor_mask[:, :, : slots.start] = True
        if self.ancestor_mask is not None:
            self.ancestor_mask[:, :, slots] = torch.eye(width, dtype=torch.bool, device=self._device)
            self.attention_bias_NWL = _additive(self.ancestor_mask[:, None, :, : self.used], self.decoder.cache_dtype)
        return slots

    def update(
        self, layer: int, slots: slice, keys_RD: torch.Tensor, values_RD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's keys and values of the newest tokens into their slots; returns all of that layer's."""
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, slots] = self.decoder.heads(keys_RD, self.sentences)
        values[:, :, slots] = self.decoder.heads(values_RD, self.sentences)
        return keys[:, :, : self.used], values[:, :, : self.used]

    def reorder(self, parents_NW: torch.Tensor) -> None:
        """Makes each hypothesis the child of one of its sentence: it inherits that one's ancestors."""
        if self.ancestor_mask is not None:
            self.ancestor_mask = self.ancestor_mask.gather(
                1, parents_NW[:, :, None].expand(-1, -1, self.ancestor_mask.shape[2])
            )

    def select(self, sentences: torch.Tensor) -> None:
        """Drops all other sentences; `sentences` are indices."""
        self.sources = [(keys[sentences], values[sentences]) for keys, values in self.sources]
        for parts in (self.keys, self.values):
            for layer, part in enumerate(parts):
                parts[layer] = part[sentences]
        self.source_mask = None if self.source_mask is None else self.source_mask[sentences]
        self.ancestor_mask = None if self.ancestor_mask is None else self.ancestor_mask[sentences]

    def _compact(self, width: int) -> None:
        """Copies the slots with descendants to larger tensors, and leaves the others behind."""
        if self.ancestor_mask is None:
            kept_NL = torch.arange(self.used, device=self._device).expand(self.sentences, -1)
            capacity = 2 * self.used + POSITIONS_AT_A_TIME * width
        else:
            used_NL = self.ancestor_mask[:, :, : self.used].any(1)
            longest = int(used_NL.sum(1).max())
            # Slots in use first, in their order; a sentence with fewer keeps some that are not in use.
            kept_NL = used_NL.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
            capacity = longest + POSITIONS_AT_A_TIME * width
            mask = self.ancestor_mask.new_zeros(*self.ancestor_mask.shape[:2], capacity)
            mask[:, :, :longest] = self.ancestor_mask.gather(
                2, kept_NL[:, None].expand(-1, self.ancestor_mask.shape[1], -1)
            )
            self.ancestor_mask = mask
        heads = torch.arange(self.sentences * self.decoder.num_heads, device=self._device)
        rows_NHL = heads.view(self.sentences, -1, 1) * self.capacity + kept_NL[:, None]
        for parts in (self.keys, self.values):
            for layer, part in enumerate(parts):
                # One layer at a time, each replaced at once: the cache is the largest thing in a search.
                parts[layer] = _copied(part, rows_NHL, capacity)
        self.used, self.capacity = kept_NL.shape[1], capacity

    @property
    def _device(self) -> torch.device:
        return self.sources[0][0].device


class _Layer:
    """One decoder layer's packed weights, with queries, keys and values of self-attention as one linear layer."""

    def __init__(self, layer: Any, pack: PackedWeights) -> None:
        own, cross, feed_forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.keys_width, self.values_width = own.k_proj.out_features, own.v_proj.out_features
        self.project = pack.fused_linear(own.q_proj, own.k_proj, own.v_proj, scaled=own.d_k**-0.5)
        self.self_out = pack.linear(own.out_proj.weight, own.out_proj.bias)
        self.source_query = pack.fused_linear(cross.q_proj, scaled=cross.d_k**-0.5)
        self.cross_out = pack.linear(cross.out_proj.weight, cross.out_proj.bias)
        self.first = pack.linear(feed_forward.w_1.weight, feed_forward.w_1.bias, feed_forward.activation)
        self.second = pack.linear(feed_forward.w_2.weight, feed_forward.w_2.bias)
        self.self_norm, self.cross_norm, self.feed_norm = map(
            pack.norm, (layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)
        )


def _additive(may_attend: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """True to zero and False to minus infinity."""
    return torch.zeros(may_attend.shape, dtype=dtype, device=may_attend.device).masked_fill_(~may_attend, -torch.inf)


def _copied(cached_NHLK: torch.Tensor, rows_NHL: torch.Tensor, capacity: int) -> torch.Tensor:
    """Some rows of K numbers at the beginning of a tensor (N, H, capacity, K), whose rest is not set."""
    copied = cached_NHLK.new_empty(*cached_NHLK.shape[:2], capacity, cached_NHLK.shape[3])
    copied[:, :, : rows_NHL.shape[2]] = F.embedding(rows_NHL, cached_NHLK.reshape(-1, cached_NHLK.shape[3]))
    return copied
