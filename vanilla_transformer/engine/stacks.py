"""The decoder of section 3 for a search, exact and without gradients.

Its `forward` is written for reading and training, and reads the prompts. Here it advances many hypotheses by one
position at a time: the source's keys and values are computed once per sentence instead of once per hypothesis, and a
sentence's hypotheses share one cache. Reordering hypotheses moves no keys or values: a mask lets each attend to its
ancestors.

Shapes in names: N sentences · W hypotheses of a sentence · R rows, N·W · S source · L slots of the cache ·
D d_model · H heads, Nh = N·H · K d_k (keys) or d_v (values), E both · V vocabulary.
"""

from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from .cpu import computing_dtype
from .linear import linear, norm, projections, residual_linear

# Positions by which the cache grows: a small number frees slots without descendants sooner, a large one copies less. A
# single sentence's cache is small.
POSITIONS_AT_A_TIME = 8
POSITIONS_OF_ONE = 32


class Layer:
    """The linear layers and norms of one decoder layer; the queries' weights include 1 / √d_k."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        own, feed_forward = layer.self_attention, layer.feed_forward
        heads = self.num_heads = len(own.q_proj.weight) // own.d_k
        self.project = projections([own.q_proj, own.k_proj, own.v_proj], heads, own.d_k**-0.5, dtype)
        self.self_out = residual_linear(own.out_proj, dtype)
        self.self_norm = norm(layer.self_attention_norm, dtype)
        if hasattr(layer, "cross_attention"):
            cross = layer.cross_attention
            self.project_source = projections([cross.k_proj, cross.v_proj], heads, 1.0, dtype)
            self.source_query = projections([cross.q_proj], heads, cross.d_k**-0.5, dtype)
            self.cross_out = residual_linear(cross.out_proj, dtype)
            self.cross_norm = norm(layer.cross_attention_norm, dtype)
        self.first = linear(feed_forward.w_1, dtype, feed_forward.activation)
        self.second = residual_linear(feed_forward.w_2, dtype)
        self.feed_norm = norm(layer.feed_forward_norm, dtype)


class SearchDecoder:
    """The decoder in a search, with or without a source, in the type in which products are computed."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.stack = stack = getattr(model.model, "decoder", model.model)  # A decoder-only model is one.
        attention = stack.layers[0].self_attention
        self.dtype = dtype = computing_dtype(model.dtype, model.device)
        # Processors multiply small float32 matrices as fast as bfloat16 ones, and the softmax then needs no
        # conversion.
        on_cpu = model.lm_head.weight.device.type == "cpu"
        self.cache_dtype = torch.float32 if on_cpu and dtype == torch.bfloat16 else dtype
        self.d_k, self.d_v = attention.d_k, attention.d_v
        self.scale, self.embedding = stack.config.d_model**0.5, stack.embed_tokens.weight
        self.layers = [Layer(layer, dtype) for layer in stack.layers]
        self.num_heads = self.layers[0].num_heads
        self.project_to_vocabulary = linear(model.lm_head, dtype)
        learned = stack.positional_encoding.learned
        self._positions = torch.empty(0) if learned is None else learned.weight

    def start(self, encoded_NSD: torch.Tensor, source_mask_NS: torch.Tensor | None) -> "DecoderCache":
        """Returns the cache before the first step: each layer's keys and values of the encoder's output."""
        read = {"encoder_hidden_states": encoded_NSD, "encoder_attention_mask": source_mask_NS}
        sentences, rows_D = len(encoded_NSD), encoded_NSD.to(self.dtype).flatten(0, 1)
        cache = DecoderCache(self, sentences, encoded_NSD.device, read)
        for layer in self.layers:
            both = self._by_head(layer.project_source(rows_D), sentences).to(self.cache_dtype)
            keys, values = (part.flatten(0, -3) for part in both.split_with_sizes([self.d_k, self.d_v], -1))
            cache.sources.append((keys.mT.contiguous(), values.contiguous()))
        if source_mask_NS is not None and not source_mask_NS.all():
            may_attend = source_mask_NS[:, None, None, :].bool()
            mask = torch.zeros(may_attend.shape, dtype=self.cache_dtype, device=may_attend.device)
            cache.source_bias = mask.masked_fill_(~may_attend, -torch.inf)
        return cache

    def start_without_source(self, sentences: int, prompt_mask_NP: torch.Tensor | None = None) -> "DecoderCache":
        """Returns the cache before the first step of a decoder that attends only to its own tokens.

        A prompt's padding, 0 in its mask, stands before its tokens.
        """
        read = {"attention_mask": None if prompt_mask_NP is None else prompt_mask_NP[:, :-1]}
        cache = DecoderCache(self, sentences, self.embedding.device, read)
        if prompt_mask_NP is not None and not prompt_mask_NP.all():
            cache.padding = prompt_mask_NP.logical_not().sum(1)
        return cache

    def encodings(self, length: int) -> torch.Tensor:
        """Section 3.5: the encodings of `length` or more positions; sinusoidal ones are computed once.

        Raises:
            ValueError: There are fewer learned positions.
        """
        module = self.stack.positional_encoding
        if len(self._positions) < length:
            room = length if module.learned is not None else 2 * length + 16
            self._positions = module(room, device=self.embedding.device)
        return self._positions

    def advance(
        self, tokens_NW: torch.Tensor, encodings: torch.Tensor, bias: torch.Tensor | None, cache: "DecoderCache"
    ) -> torch.Tensor:
        """Runs all layers over the newest token of each hypothesis, whose slots are allocated.

        `bias` limits attention.
        """
        embedded = F.embedding(tokens_NW.reshape(-1), self.embedding).to(self.dtype)
        x = embedded * self.scale + encodings.to(self.dtype)
        for number, layer in enumerate(self.layers):
            q, keys, values = cache.update(number, self._by_head(layer.project(x), cache.sentences))
            x = layer.self_norm(layer.self_out(self._attend(q, keys.mT, values, bias), x))
            if cache.sources:
                keys, values = cache.sources[number]
                q = self._by_head(layer.source_query(x), cache.sentences)
                x = layer.cross_norm(layer.cross_out(self._attend(q, keys, values, cache.source_bias), x))
            x = layer.feed_norm(layer.second(layer.first(x), x))
        return x

    def _by_head(self, projected: torch.Tensor, sentences: int) -> torch.Tensor:
        """Returns (N·W, H·E) as (N·H, W, E) where that is a view, otherwise as (N, H, W, E)."""
        rows = len(projected)
        if rows == sentences:
            return projected.view(rows * self.num_heads, 1, -1)
        if sentences == 1:
            return projected.view(rows, self.num_heads, -1).transpose(0, 1)
        return projected.view(sentences, rows // sentences, self.num_heads, -1).transpose(1, 2)

    def _attend(
        self, q: torch.Tensor, keys_NhKL: torch.Tensor, values_NhLK: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Section 3.2.1 for all heads: a sentence's hypotheses are the queries; their weights include 1 / √d_k."""
        if q.dtype != self.cache_dtype:
            q = q.to(self.cache_dtype)
        q_NhWK = q if q.dim() == 3 else q.flatten(0, 1)
        heads, (all_heads, width, _) = self.num_heads, q_NhWK.shape
        scores = torch.bmm(q_NhWK, keys_NhKL)
        if bias is not None:
            scores.view(-1, heads, width, scores.shape[2]).add_(bias)
        attended = torch.bmm(torch.softmax(scores, -1), values_NhLK)
        if width == 1:
            attended = attended.view(-1, heads * self.d_v)
        elif all_heads == heads:
            attended = attended.transpose(0, 1).reshape(width, -1)
        else:
            attended = attended.view(-1, heads, width, self.d_v).transpose(1, 2).reshape(-1, heads * self.d_v)
        return attended if attended.dtype == self.dtype else attended.to(self.dtype)


class DecoderCache:
    """Keys and values of a batch's sources and of its running hypotheses, which share their ancestors.

    A step takes one slot for each hypothesis of a sentence. `ancestor_bias` is added to attention scores: zero in
    slots of a hypothesis's ancestors, minus infinity elsewhere, (N, 1, W, capacity); None while a single hypothesis
    runs after a prompt without padding.

    Attributes:
        sources: Each layer's keys (N·H, K, S) and values (N·H, S, K) of the source; none without a source.
        own: Each layer's keys and, beside them, values of the hypotheses' tokens, (N·H, capacity, E), `used` of them.
        padding: Number of positions before the first token of each prompt, (N,); None where there are none.

    Args:
        reads: What the decoder's `forward` needs beside the tokens of the prompts.
    """

    def __init__(
        self, decoder: SearchDecoder, sentences: int, device: torch.device, reads: dict[str, torch.Tensor | None]
    ) -> None:
        self.decoder, self.sentences, self.device, self._reads = decoder, sentences, device, reads
        self.sources: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.source_bias: torch.Tensor | None = None
        self.padding: torch.Tensor | None = None
        self.position = self.used = self.capacity = 0
        # One tensor per layer: the system maps and unmaps very large tensors page by page.
        self.widths = [decoder.d_k, decoder.d_v]
        shape = (sentences * decoder.num_heads, 0, sum(self.widths))
        self.own = [torch.empty(shape, dtype=decoder.cache_dtype, device=device) for _ in decoder.layers]
        self.ancestor_bias: torch.Tensor | None = None
        self._slots = (0, 0)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        """Maps the newest token of each hypothesis to logits of the next, (sentences · hypotheses, vocabulary)."""
        width, table = tokens_NW.shape[1], self.decoder.encodings(self.position + 1)
        encodings = table[self.position]
        if self.padding is not None:
            encodings = table[self.position - self.padding].repeat_interleave(width, 0)
        x = self.decoder.advance(tokens_NW, encodings, self.allocate(width), self)
        self.position += 1
        return self.decoder.project_to_vocabulary(x)

    def read(self, tokens_NP: torch.Tensor) -> None:
        """Reads all tokens of each sentence's prompt but the last, by the decoder's own `forward`."""
        read: Any = self.decoder.stack(tokens_NP, use_cache=True, return_dict=True, **self._reads).past_key_values
        length = self.position = tokens_NP.shape[1]
        self._take_slots(length, length + POSITIONS_OF_ONE)
        are_padding_NP = torch.zeros_like(tokens_NP, dtype=torch.bool)
        if self.padding is not None:
            are_padding_NP = torch.arange(length, device=self.device) < self.padding[:, None]
            self.ancestor_bias = self._no_ancestors(1)
            self.ancestor_bias[:, 0, 0, :length].masked_fill_(~are_padding_NP, 0.0)
        for own, layer in zip(self.own, getattr(read, "self_attention_cache", read).layers, strict=True):
            both_NHPE = torch.cat((layer.keys, layer.values), -1)  # Of padding they may be NaN.
            own[:, :length] = both_NHPE.masked_fill_(are_padding_NP[:, None, :, None], 0.0).flatten(0, 1)

    def allocate(self, width: int) -> torch.Tensor | None:
        """Takes slots for one more position of `width` hypotheses per sentence; returns the attention bias."""
        if self.ancestor_bias is not None and self.ancestor_bias.shape[2] != width:
            self.ancestor_bias = self.ancestor_bias.expand(-1, -1, width, -1).contiguous()
        first = self._take_slots(width, (POSITIONS_OF_ONE if self.sentences == 1 else POSITIONS_AT_A_TIME) * width)
        if self.ancestor_bias is None:
            if width == 1:
                return None
            # Until now there was a single hypothesis, the ancestor of all.
            self.ancestor_bias = self._no_ancestors(width)
            self.ancestor_bias[..., :first] = 0
        new = self.ancestor_bias.narrow(3, first, width)
        new.fill_(-torch.inf).diagonal(dim1=2, dim2=3).zero_()
        return self.ancestor_bias.narrow(3, 0, self.used)

    def _take_slots(self, count: int, spare: int) -> int:
        """Takes the next slots and returns the first; where they do not exist, makes them with `spare` more."""
        if self.used + count > self.capacity:
            self._compact(spare)
        self._slots = first, _ = self.used, count
        self.used += count
        return first

    def _no_ancestors(self, width: int) -> torch.Tensor:
        shape = (self.sentences, 1, width, self.capacity)
        return torch.full(shape, -torch.inf, dtype=self.decoder.cache_dtype, device=self.device)

    def update(self, layer: int, by_head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Writes a layer's newest keys and values into their slots; returns the queries, and all keys and values."""
        (first, width), (d_k, d_v) = self._slots, self.widths
        queries, new = by_head.split_with_sizes([d_k, d_k + d_v], -1)
        slots = self.own[layer].narrow(1, first, width)
        (slots if new.dim() == 3 else slots.view(new.shape)).copy_(new)
        keys, values = self.own[layer].narrow(1, 0, self.used).split_with_sizes(self.widths, 2)
        return queries, keys, values

    def reorder(self, parents_NW: torch.Tensor) -> None:
        """Makes each hypothesis the child of another one of its sentence, whose ancestors it inherits."""
        if self.ancestor_bias is None:
            return
        if self.sentences == 1:
            self.ancestor_bias = self.ancestor_bias.index_select(2, parents_NW[0])
        else:
            parents = parents_NW[:, None, :, None].expand(-1, -1, -1, self.capacity)
            self.ancestor_bias = self.ancestor_bias.gather(2, parents)

    def select(self, sentences: torch.Tensor) -> None:
        """Drops all other sentences; `sentences` are indices."""
        heads = torch.arange(self.decoder.num_heads, device=self.device)
        rows = (sentences[:, None] * self.decoder.num_heads + heads).flatten()
        self.sources = [(keys[rows], values[rows]) for keys, values in self.sources]
        for layer, part in enumerate(self.own):
            self.own[layer] = part[rows]
        self.source_bias = None if self.source_bias is None else self.source_bias[sentences]
        self.padding = None if self.padding is None else self.padding[sentences]
        self.ancestor_bias = None if self.ancestor_bias is None else self.ancestor_bias[sentences]
        self.sentences = len(sentences)

    def _compact(self, spare: int) -> None:
        """Copies the slots with descendants to larger tensors and drops the others."""
        if self.ancestor_bias is None or self.ancestor_bias.shape[2] == 1:
            # All slots are ancestors, or padding, which stays where it is.
            kept_NL = torch.arange(self.used, device=self.device).expand(self.sentences, -1)
            capacity = 2 * self.used + spare
        else:
            used_NL = (self.ancestor_bias[:, 0, :, : self.used] == 0).any(1)
            longest = int(used_NL.sum(1).max())
            # Slots in use first, in their order; a sentence with fewer keeps some unused ones.
            kept_NL = used_NL.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
            capacity = longest + spare
        if self.ancestor_bias is not None:
            bias = self.ancestor_bias.new_full((*self.ancestor_bias.shape[:3], capacity), -torch.inf)
            kept = kept_NL[:, None, None].expand(-1, -1, self.ancestor_bias.shape[2], -1)
            bias[..., : kept.shape[3]] = self.ancestor_bias.gather(3, kept)
            self.ancestor_bias = bias
        used = kept_NL.shape[1]
        heads = torch.arange(self.sentences * self.decoder.num_heads, device=self.device)
        rows = heads.view(self.sentences, -1, 1) * self.capacity + kept_NL[:, None]
        for layer, part in enumerate(self.own):
            # One layer at a time, each replaced at once: the cache is the largest object in a search.
            self.own[layer] = _copied(part, rows.flatten(0, 1), capacity)
        self.used, self.capacity = used, capacity


def _copied(cached_NhLK: torch.Tensor, rows_NhL: torch.Tensor, capacity: int) -> torch.Tensor:
    """Copies rows of width K to the beginning of a tensor (N·H, capacity, K); the rest of it is not set."""
    copied = cached_NhLK.new_empty(len(cached_NhLK), capacity, cached_NhLK.shape[2])
    if rows_NhL.shape[1]:
        copied[:, : rows_NhL.shape[1]] = F.embedding(rows_NhL, cached_NhLK.reshape(-1, cached_NhLK.shape[2]))
    return copied
