"""The decoder of section 3 for search: one more position of many hypotheses at a time, without loss.

Where `forward` of the decoder is written to be read and trained, this is written to be asked again and again: weights
are laid out for the processor once, the source's keys and values are computed once for a sentence and not once for a
hypothesis, and the past of a sentence's hypotheses is kept once for all of them. Nothing of that past is moved when
hypotheses are chosen: each sees what it descends from, through a mask.

Shapes in names: N sentences · W hypotheses of a sentence · R = N·W rows · S source · L slots of the past · D d_model ·
H heads · K d_k (keys) or d_v (values) · V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from .packed_weights import Layout

# Room is made for so many positions at a time: the fewer, the sooner slots that no hypothesis sees any more are freed,
# the more, the less is moved.
POSITIONS_AT_A_TIME = 8


class StepDecoder:
    """The decoder's weights as a search wants them, and its step.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`, whose decoder and output projection are used.
        dtype: Type of the activations, and of the weights unless they are quantized.
        quantization: None, or "int8"; see `Layout`.
    """

    @staticmethod
    def weights(model: Any) -> Iterator[torch.Tensor]:
        """What it is made from, and has to be made anew for when it changes; the embedding is read as it is."""
        yield from model.model.decoder.layers.parameters()
        yield from model.lm_head.parameters()

    def __init__(self, model: Any, dtype: torch.dtype, quantization: str | None = None) -> None:
        config, decoder = model.config, model.model.decoder
        lay_out = Layout(dtype, quantization, few_rows=True)
        self.dtype = lay_out.activations
        # Processors multiply small matrices of float32 as fast as of bfloat16, and their softmax needs no detour.
        on_cpu = model.lm_head.weight.device.type == "cpu"
        self.past_dtype = torch.float32 if on_cpu else self.dtype
        self.num_heads, self.d_k, self.d_v = config.num_heads, config.d_k, config.d_v
        self.scale = config.d_model**0.5
        self.decoder = decoder
        self.layers = [_Layer(layer, lay_out) for layer in decoder.layers]
        self.source_products = [
            Layout(dtype, quantization).joined(layer.cross_attention.k_proj, layer.cross_attention.v_proj)
            for layer in decoder.layers
        ]
        self.project_to_vocabulary = lay_out.product(model.lm_head.weight, model.lm_head.bias)

    def start(self, encoded_NSD: torch.Tensor, source_mask_NS: torch.Tensor | None) -> "Past":
        """What is known before the first step: each layer's keys and values of the source.

        Args:
            encoded_NSD: The encoder's output, (sentences, source length, d_model).
            source_mask_NS: 1 on source tokens, 0 on padding; None where there is no padding.
        """
        encoded_NSD = encoded_NSD.to(self.dtype)
        rows_D = encoded_NSD.flatten(0, 1)
        sources = []
        for product in self.source_products:
            keys, values = product(rows_D).split((self.num_heads * self.d_k, self.num_heads * self.d_v), dim=-1)
            sources.append((self._kept(keys, len(encoded_NSD)), self._kept(values, len(encoded_NSD))))
        mask = None
        if source_mask_NS is not None and not source_mask_NS.all():
            mask = _additive(source_mask_NS[:, None, None, :].bool(), self.past_dtype)
        return Past(self, sources, mask)

    def step(self, tokens_NW: torch.Tensor, position: int, past: "Past") -> torch.Tensor:
        """Logits (sentences · hypotheses, vocabulary) of what follows the tokens, which stand at `position`.

        The tokens' keys and values are added to the past.
        """
        encoding = past.encoding_of(position)
        x = F.embedding(tokens_NW.flatten(), self.decoder.embed_tokens.weight).to(self.dtype) * self.scale + encoding
        slots = past.room_for(tokens_NW.shape[1])
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x).split((layer.keys_width, layer.keys_width, layer.values_width), dim=-1)
            keys, values = past.remember(number, slots, k, v)
            x = layer.self_norm(x + layer.self_out(self._attend(q, keys, values, past.visible_NWL)))
            keys, values = past.sources[number]
            x = layer.cross_norm(
                x + layer.cross_out(self._attend(layer.source_query(x), keys, values, past.source_mask))
            )
            x = layer.feed_norm(x + layer.second(layer.first(x)))
        return self.project_to_vocabulary(x)

    def heads(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """(N·L, H·K) to (N, H, L, K), a view."""
        split = projected_RD.view(sentences, -1, self.num_heads, projected_RD.shape[1] // self.num_heads)
        return split.transpose(1, 2)

    def _kept(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """The same as a tensor of its own, in the type of the past."""
        return self.heads(projected_RD, sentences).to(self.past_dtype).contiguous()

    def _attend(
        self,
        q_RD: torch.Tensor,
        keys_NHLK: torch.Tensor,
        values_NHLK: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Section 3.2.1 for all heads: a sentence's hypotheses are the queries; 1 / √d_k is in their weights."""
        sentences, heads = keys_NHLK.shape[:2]
        q_NHWK = self.heads(q_RD, sentences).to(self.past_dtype)
        scores = torch.bmm(q_NHWK.flatten(0, 1), keys_NHLK.flatten(0, 1).mT)
        if mask is not None:
            scores.view(sentences, heads, q_NHWK.shape[2], -1).add_(mask)
        # The library's attention, too, takes the softmax of bfloat16 in float32.
        weights = scores.softmax(-1, dtype=torch.float32).to(values_NHLK.dtype)
        attended = torch.bmm(weights, values_NHLK.flatten(0, 1)).unflatten(0, (sentences, heads))
        return attended.transpose(1, 2).reshape(q_RD.shape[0], heads * self.d_v).to(self.dtype)


class Past:
    """What the running hypotheses of some sentences have behind them: source, tokens, and who descends from whom.

    A step takes one slot of the past for each hypothesis of a sentence. `visible_NWL` is added to attention scores:
    zero in slots that a hypothesis descends from, minus infinity elsewhere; None while there is one hypothesis.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        sources: list[tuple[torch.Tensor, torch.Tensor]],
        source_mask: torch.Tensor | None,
    ) -> None:
        self.decoder, self.sources, self.source_mask = decoder, sources, source_mask
        self.used = 0
        # A tensor for each layer: what is very large, the system gives page by page, and takes back at once.
        self.keys = [keys[:, :, :0] for keys, _ in sources]
        self.values = [values[:, :, :0] for _, values in sources]
        self.room = 0
        self.sees: torch.Tensor | None = None  # (N, W, room), True where a hypothesis descends from the slot.
        self.visible_NWL: torch.Tensor | None = None
        self._encodings = torch.empty(0)

    @property
    def sentences(self) -> int:
        """How many are still searched for."""
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

    def room_for(self, width: int) -> slice:
        """The slots for one more position of `width` hypotheses a sentence; each comes to see its own."""
        if self.used + width > self.room:
            self._make_room(width)
        slots = slice(self.used, self.used + width)
        self.used = slots.stop
        if self.sees is None and width > 1:
            # Until now there was one hypothesis, and it saw everything.
            self.sees = torch.zeros(self.sentences, width, self.room, dtype=torch.bool, device=self._device)
            self.sees[:, :, : slots.start] = True
        if self.sees is not None:
            self.sees[:, :, slots] = torch.eye(width, dtype=torch.bool, device=self._device)
            self.visible_NWL = _additive(self.sees[:, None, :, : self.used], self.decoder.past_dtype)
        return slots

    def remember(
        self, layer: int, slots: slice, keys_RD: torch.Tensor, values_RD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Puts a layer's keys and values of the newest tokens into their slots; returns all of that layer's."""
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, slots] = self.decoder.heads(keys_RD, self.sentences)
        values[:, :, slots] = self.decoder.heads(values_RD, self.sentences)
        return keys[:, :, : self.used], values[:, :, : self.used]

    def descend(self, parents_NW: torch.Tensor) -> None:
        """Makes each hypothesis the child of another one of its sentence: it sees what its parent saw."""
        if self.sees is not None:
            self.sees = self.sees.gather(1, parents_NW[:, :, None].expand(-1, -1, self.sees.shape[2]))

    def keep(self, sentences: torch.Tensor) -> None:
        """Lets all other sentences go; `sentences` are indices."""
        self.sources = [(keys[sentences], values[sentences]) for keys, values in self.sources]
        for parts in (self.keys, self.values):
            for layer, part in enumerate(parts):
                parts[layer] = part[sentences]
        self.source_mask = None if self.source_mask is None else self.source_mask[sentences]
        self.sees = None if self.sees is None else self.sees[sentences]

    def _make_room(self, width: int) -> None:
        """Moves the slots that some hypothesis sees to a place with room for more, and leaves the others behind."""
        if self.sees is None:
            kept_NL = torch.arange(self.used, device=self._device).expand(self.sentences, -1)
            room = 2 * self.used + POSITIONS_AT_A_TIME * width
        else:
            seen_NL = self.sees[:, :, : self.used].any(1)
            longest = int(seen_NL.sum(1).max())
            # Seen slots first, in their order; a sentence that sees fewer keeps some that it does not see.
            kept_NL = seen_NL.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
            room = longest + POSITIONS_AT_A_TIME * width
            sees = self.sees.new_zeros(*self.sees.shape[:2], room)
            sees[:, :, :longest] = self.sees.gather(2, kept_NL[:, None].expand(-1, self.sees.shape[1], -1))
            self.sees = sees
        heads = torch.arange(self.sentences * self.decoder.num_heads, device=self._device)
        rows_NHL = heads.view(self.sentences, -1, 1) * self.room + kept_NL[:, None]
        for parts in (self.keys, self.values):
            for layer, part in enumerate(parts):
                # Each in the place of the old one at once: the past is the largest thing that a search has.
                parts[layer] = _moved(part, rows_NHL, room)
        self.used, self.room = kept_NL.shape[1], room

    @property
    def _device(self) -> torch.device:
        return self.sources[0][0].device


class _Layer:
    """One decoder layer's products, with queries, keys and values of self-attention as one."""

    def __init__(self, layer: Any, lay_out: Layout) -> None:
        own, cross, feed_forward = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.keys_width, self.values_width = own.k_proj.out_features, own.v_proj.out_features
        self.project = lay_out.joined(own.q_proj, own.k_proj, own.v_proj, scaled=own.d_k**-0.5)
        self.self_out = lay_out.product(own.out_proj.weight, own.out_proj.bias)
        self.source_query = lay_out.joined(cross.q_proj, scaled=cross.d_k**-0.5)
        self.cross_out = lay_out.product(cross.out_proj.weight, cross.out_proj.bias)
        self.first = lay_out.product(feed_forward.w_1.weight, feed_forward.w_1.bias, feed_forward.activation)
        self.second = lay_out.product(feed_forward.w_2.weight, feed_forward.w_2.bias)
        self.self_norm, self.cross_norm, self.feed_norm = map(
            lay_out.norm, (layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm)
        )


def _additive(may_attend: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """True to zero and False to minus infinity."""
    return torch.zeros(may_attend.shape, dtype=dtype, device=may_attend.device).masked_fill_(~may_attend, -torch.inf)


def _moved(past_NHLK: torch.Tensor, rows_NHL: torch.Tensor, room: int) -> torch.Tensor:
    """Some rows of K numbers at the beginning of a tensor (N, H, room, K), whose rest is not set."""
    moved = past_NHLK.new_empty(*past_NHLK.shape[:2], room, past_NHLK.shape[3])
    moved[:, :, : rows_NHL.shape[2]] = F.embedding(rows_NHL, past_NHLK.reshape(-1, past_NHLK.shape[3]))
    return moved
