"""The encoder of section 3 for decoding, without gradients, on weights packed for the processor.

Shapes in names: N sentences · S source · R = N·S rows · D d_model · H heads · K d_k (keys) or d_v (values).
"""

from typing import Any

import torch
from torch.nn import functional as F

from .linear import PackedWeights


class Encoder:
    """The encoder on packed weights: its pass over a batch of sentences.

    Args:
        model: A model with an encoder, which is used.
        weights: Makes the linear layers.
    """

    def __init__(self, model: Any, weights: PackedWeights) -> None:
        encoder = model.model.encoder
        attention = encoder.layers[0].self_attention
        self.dtype, self.num_heads = weights.activations, len(attention.q_proj.weight) // attention.d_k
        self.embedding, self.scale = weights.embedding(encoder.embed_tokens), encoder.config.d_model**0.5
        self.positions = weights.positions(encoder.positional_encoding)
        self.layers = [_Layer(layer, weights) for layer in encoder.layers]

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps token ids (N, S), or embeddings (N, S, D), to states (N, S, D)."""
        may_attend = None
        if attention_mask is not None and not attention_mask.all():
            may_attend = attention_mask[:, None, None, :].bool()
        x_NSD = self._embed(input_ids, inputs_embeds, attention_mask).to(self.dtype)
        x = x_NSD.flatten(0, 1)
        for layer in self.layers:
            q_NHSK, k_NHSK, v_NHSK = (self._heads(part, len(x_NSD)) for part in layer.project(x))
            # The queries' weights include 1 / √d_k.
            attended = F.scaled_dot_product_attention(q_NHSK, k_NHSK, v_NHSK, may_attend, scale=1.0)
            x = layer.self_norm(layer.self_out(attended.transpose(1, 2).reshape(x.shape[0], -1), x))
            x = layer.feed_norm(layer.second(layer.first(x), x))
        return x.view_as(x_NSD)

    def _embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Sections 3.4 and 3.5: a sentence's first token that is not padding has position 0."""
        x_NSD = inputs_embeds
        if x_NSD is None:
            assert input_ids is not None
            x_NSD = F.embedding(input_ids, self.embedding)
        length, device = x_NSD.shape[1], x_NSD.device
        if attention_mask is None or attention_mask.all():
            encodings = self.positions.first(length, device)[:length]
        else:
            places_NS = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            encodings = self.positions.at(places_NS, length)
        return x_NSD * self.scale + encodings.to(x_NSD.dtype)

    def _heads(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """Reshapes (N·S, H·K) to (N, H, S, K)."""
        width = projected_RD.shape[1] // self.num_heads
        return projected_RD.view(sentences, -1, self.num_heads, width).transpose(1, 2)


class _Layer:
    """The linear layers and norms of one encoder layer; the queries' weights include 1 / √d_k."""

    def __init__(self, layer: Any, weights: PackedWeights) -> None:
        own, feed_forward = layer.self_attention, layer.feed_forward
        self.project = weights.projections(own.q_proj, own.k_proj, own.v_proj, scaled=own.d_k**-0.5)
        self.self_out = weights.residual_linear(own.out_proj)
        self.first = weights.linear(feed_forward.w_1, feed_forward.activation)
        self.second = weights.residual_linear(feed_forward.w_2)
        self.self_norm, self.feed_norm = map(weights.norm, (layer.self_attention_norm, layer.feed_forward_norm))
