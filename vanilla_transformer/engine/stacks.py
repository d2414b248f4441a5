"""The decoder of section 3 for a search, exact and without gradients.

Its `forward` is written for reading and training, and reads the prompts. Here it advances many hypotheses by one
position at a time: the source's keys and values are computed once per sentence instead of once per hypothesis, and a
sentence's hypotheses share one cache. Reordering hypotheses moves no keys or values: a mask lets each attend to its
ancestors.

Shapes in names: N sentences · W hypotheses of a sentence · R rows, N·W · S source · L slots of the cache ·
D d_model · H heads · K d_k (keys) or d_v (values), E both · V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from .cpu import computing_dtype

# The parameters of a layer by their names.
Weights = dict[str, torch.Tensor]

# Positions by which the cache grows: a small number frees slots without descendants sooner, a large one copies less. A
# single sentence's cache is small.
POSITIONS_AT_A_TIME = 8
POSITIONS_OF_ONE = 32


class SearchDecoder:
    """The decoder, with the keys and values of a batch's sources and of its running hypotheses, which share ancestors.

    A step takes one slot for each hypothesis of a sentence. `ancestor_bias` is added to attention scores: zero in
    slots of a hypothesis's ancestors, minus infinity elsewhere, (N, 1, W, capacity); None while a single hypothesis
    runs after a prompt without padding.

    Attributes:
        sources: Each layer's keys (N, H, K, S) and values (N, H, S, K) of the source; none without a source.
        own: Each layer's keys and, beside them, values of the hypotheses' tokens, (N, H, capacity, E), `used` of them.
        padding: Number of positions before the first token of each prompt, (N,); None where there are none.

    Args:
        sentences: Number of sentences.
        mask: 0 on padding: of the sources, or, where there are none, of the prompts, which it precedes.
        encoded_NSD: The encoder's output.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sentences: int,
        mask: torch.Tensor | None,
        encoded_NSD: torch.Tensor | None = None,
    ) -> None:
        self.stack = stack = getattr(model.model, "decoder", model.model)  # A decoder-only model is one.
        attention, device = stack.layers[0].self_attention, model.lm_head.weight.device
        self.sentences, self.device, self.dtype = sentences, device, computing_dtype(model.dtype, model.device)
        # Processors multiply small float32 matrices as fast as bfloat16 ones, and the softmax then needs no
        # conversion.
        is_widened = device.type == "cpu" and self.dtype == torch.bfloat16
        self.cache_dtype = torch.float32 if is_widened else self.dtype
        self.d_k, self.d_v, self.num_heads = attention.d_k, attention.d_v, stack.config.num_heads
        self.scale, self.embedding = stack.config.d_model**0.5, stack.embed_tokens.weight
        self.layers = [_weights(layer, self.dtype) for layer in stack.layers]
        self.lm_head = _weights(model.lm_head, self.dtype)
        self.activation, self.eps = stack.layers[0].feed_forward.activation, stack.layers[0].feed_forward_norm.eps
        learned = stack.positional_encoding.learned
        self._positions = torch.empty(0) if learned is None else learned.weight
        self.sources: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.source_bias: torch.Tensor | None = None
        self.padding: torch.Tensor | None = None
        self.ancestor_bias: torch.Tensor | None = None
        self.position = self.used = self.capacity = 0
        # One tensor per layer: the system maps and unmaps very large tensors page by page.
        self.widths = [self.d_k, self.d_v]
        shape = (sentences, self.num_heads, 0, sum(self.widths))
        self.own = [torch.empty(shape, dtype=self.cache_dtype, device=device) for _ in self.layers]
        self._slots = (0, 0)
        # What the decoder's `forward` needs beside the tokens of the prompts.
        self._reads: dict[str, torch.Tensor | None]
        is_padded = mask is not None and not mask.all()
        if encoded_NSD is None:
            self._reads = {"attention_mask": None if mask is None else mask[:, :-1]}
            if mask is not None and is_padded:
                self.padding = mask.logical_not().sum(1)
            return
        self._reads = {"encoder_hidden_states": encoded_NSD, "encoder_attention_mask": mask}
        rows_D = encoded_NSD.to(self.dtype).flatten(0, 1)
        for layer in self.layers:
            keys, values = (self._by_head(_linear(rows_D, layer, f"cross_attention.{part}_proj")) for part in "kv")
            self.sources.append((keys.mT.contiguous(), values.contiguous()))
        if mask is not None and is_padded:
            may_attend = mask[:, None, None, :].bool()
            bias = torch.zeros(may_attend.shape, dtype=self.cache_dtype, device=device)
            self.source_bias = bias.masked_fill_(~may_attend, -torch.inf)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        """Maps the newest token of each hypothesis to logits of the next, (sentences · hypotheses, vocabulary)."""
        width, table = tokens_NW.shape[1], self._encodings(self.position + 1)
        encodings = table[self.position]
        if self.padding is not None:
            encodings = table[self.position - self.padding].repeat_interleave(width, 0)
        self.position, bias = self.position + 1, self._allocate(width)
        embedded = F.embedding(tokens_NW.reshape(-1), self.embedding).to(self.dtype)
        x = embedded * self.scale + encodings.to(self.dtype)
        for number, layer in enumerate(self.layers):
            q, k, v = (_linear(x, layer, f"self_attention.{part}_proj") for part in "qkv")
            keys, values = self.update(number, self._by_head(k), self._by_head(v))
            x = self._attended(x, layer, "self_attention", q, keys.mT, values, bias)
            if self.sources:
                q = _linear(x, layer, "cross_attention.q_proj")
                x = self._attended(x, layer, "cross_attention", q, *self.sources[number], self.source_bias)
            inner = self.activation(_linear(x, layer, "feed_forward.w_1"))
            x = self._sublayer(x, inner, layer, "feed_forward.w_2", "feed_forward_norm")
        return F.linear(x, self.lm_head["weight"], self.lm_head.get("bias"))

    def _encodings(self, length: int) -> torch.Tensor:
        """Section 3.5: the encodings of `length` or more positions; sinusoidal ones are computed once.

        Raises:
            ValueError: There are fewer learned positions.
        """
        module = self.stack.positional_encoding
        if len(self._positions) < length:
            room = length if module.learned is not None else 2 * length + 16
            self._positions = module(room, device=self.device)
        return self._positions

    def _by_head(self, projected: torch.Tensor) -> torch.Tensor:
        """Returns (N·W, H·K) as (N, H, W, K), in the cache's type."""
        by_head = projected.view(self.sentences, -1, self.num_heads, projected.shape[1] // self.num_heads)
        by_head = by_head.transpose(1, 2)
        return by_head if by_head.dtype == self.cache_dtype else by_head.to(self.cache_dtype)

    def _attended(
        self,
        x: torch.Tensor,
        layer: Weights,
        attention: str,
        queries: torch.Tensor,
        keys_NHKL: torch.Tensor,
        values_NHLK: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Section 3.2.1 for all heads, as a sub-layer: a sentence's hypotheses are the queries."""
        scores = torch.bmm(self._by_head(queries * self.d_k**-0.5).flatten(0, 1), keys_NHKL.flatten(0, 1))
        if bias is not None:
            scores.view(self.sentences, self.num_heads, *scores.shape[1:]).add_(bias)
        attended = torch.bmm(torch.softmax(scores, -1), values_NHLK.flatten(0, 1))
        rows = attended.view(self.sentences, self.num_heads, -1, self.d_v).transpose(1, 2).reshape(len(x), -1)
        rows = rows if rows.dtype == self.dtype else rows.to(self.dtype)
        return self._sublayer(x, rows, layer, f"{attention}.out_proj", f"{attention}_norm")

    def _sublayer(self, x: torch.Tensor, inner: torch.Tensor, layer: Weights, last: str, norm: str) -> torch.Tensor:
        """LayerNorm(x + Sublayer(x)), from what the sub-layer's last product multiplies; overwrites x."""
        weight, bias = layer[f"{last}.weight"], layer.get(f"{last}.bias")
        x = x.addmm_(inner, weight.mT) if bias is None else F.linear(inner, weight, bias).add_(x)
        gain, bias = layer[f"{norm}.weight"], layer[f"{norm}.bias"]
        return torch.layer_norm(x, gain.shape, gain, bias, self.eps)

    def read(self, tokens_NP: torch.Tensor) -> None:
        """Reads all tokens of each sentence's prompt but the last, by the decoder's own `forward`."""
        outputs: Any = self.stack(tokens_NP, use_cache=True, return_dict=True, **self._reads)
        read = outputs[1]  # The cache, whose name differs between versions of transformers.
        length = self.position = tokens_NP.shape[1]
        self._take_slots(length, length + POSITIONS_OF_ONE)
        are_padding_NP = torch.zeros_like(tokens_NP, dtype=torch.bool)
        if self.padding is not None:
            are_padding_NP = torch.arange(length, device=self.device) < self.padding[:, None]
            self.ancestor_bias = self._no_ancestors(1)
            self.ancestor_bias[:, 0, 0, :length].masked_fill_(~are_padding_NP, 0.0)
        for own, layer in zip(self.own, getattr(read, "self_attention_cache", read).layers, strict=True):
            both_NHPE = torch.cat((layer.keys, layer.values), -1)  # Of padding they may be NaN.
            own[:, :, :length] = both_NHPE.masked_fill_(are_padding_NP[:, None, :, None], 0.0)

    def _allocate(self, width: int) -> torch.Tensor | None:
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
        return torch.full(shape, -torch.inf, dtype=self.cache_dtype, device=self.device)

    def update(
        self, layer: int, keys_NHWK: torch.Tensor, values_NHWK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes a layer's newest keys and values into their slots; returns all of them, (N, H, slots, K)."""
        first, width = self._slots
        keys, values = self.own[layer].narrow(2, 0, self.used).split_with_sizes(self.widths, 3)
        keys.narrow(2, first, width).copy_(keys_NHWK)
        values.narrow(2, first, width).copy_(values_NHWK)
        return keys, values

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
        self.sources = [(keys[sentences], values[sentences]) for keys, values in self.sources]
        for layer, part in enumerate(self.own):
            self.own[layer] = part[sentences]
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
        self.used, self.capacity = kept_NL.shape[1], capacity
        sentences = torch.arange(self.sentences, device=self.device)[:, None, None]
        heads = torch.arange(self.num_heads, device=self.device)[:, None]
        for layer, part in enumerate(self.own):
            # One layer at a time, each replaced at once: the cache is the largest object in a search.
            self.own[layer] = part.new_empty(*part.shape[:2], capacity, part.shape[3])
            self.own[layer][:, :, : self.used] = part[sentences, heads, kept_NL[:, None]]


def _weights(module: nn.Module, dtype: torch.dtype) -> Weights:
    """Returns a module's parameters, read in place, or converted where their type is another."""
    return {name: weight.to(dtype) for name, weight in module.named_parameters()}


def _linear(x: torch.Tensor, layer: Weights, name: str) -> torch.Tensor:
    return F.linear(x, layer[f"{name}.weight"], layer.get(f"{name}.bias"))
