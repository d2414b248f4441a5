"""The encoder of section 3 for decoding: its weights packed for the processor, without gradients.

Shapes in names: N sentences · S source · R = N·S rows · D d_model · H heads · K d_k (keys) or d_v (values).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from .packed_weights import PackedWeights, PositionTable


class PackedEncoder:
    """The encoder's weights packed as `PackedWeights` says, and its pass over a batch of sentences.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`, whose encoder is used.
        dtype: Type of the activations, and of the weights unless they are quantized.
        quantization: None, or "int8"; see `PackedWeights`.
    """

    @staticmethod
    def weights(model: Any) -> Iterator[torch.Tensor]:
        """The weights that are packed, and packed again when they change; the embedding is read in place."""
        yield from model.model.encoder.layers.parameters()

    def __init__(self, model: Any, dtype: torch.dtype, quantization: str | None = None) -> None:
        pack = PackedWeights(dtype, quantization)
        self.dtype = pack.activations
        self.num_heads, self.embed = model.config.num_heads, SourceEmbedding(model)
        self.layers = [_Layer(layer, pack) for layer in model.model.encoder.layers]

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(N, S) token ids, or embeddings (N, S, D), to (N, S, D)."""
        may_attend = None
        if attention_mask is not None and not attention_mask.all():
            may_attend = attention_mask[:, None, None, :].bool()
        x_NSD = self.embed(input_ids, inputs_embeds, attention_mask).to(self.dtype)
        x = x_NSD.flatten(0, 1)
        for layer in self.layers:
            q, k, v = layer.project(x).split_with_sizes(layer.widths, 1)
            q_NHSK, k_NHSK, v_NHSK = (self._heads(part, len(x_NSD)) for part in (q, k, v))
            # 1 / √d_k is in the weights of the queries.
            attended = F.scaled_dot_product_attention(q_NHSK, k_NHSK, v_NHSK, may_attend, scale=1.0)
            x = layer.self_norm(layer.self_out(attended.transpose(1, 2).reshape(x.shape[0], -1), x))
            x = layer.feed_norm(layer.second(layer.first(x), x))
        return x.view_as(x_NSD)

    def _heads(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """(N·S, H·K) to (N, H, S, K)."""
        width = projected_RD.shape[1] // self.num_heads
        return projected_RD.view(sentences, -1, self.num_heads, width).transpose(1, 2)


class SourceEmbedding:
    """What the encoder's layers begin with, with the encodings that are there already where there is no padding."""

    def __init__(self, model: Any) -> None:
        self.encoder, self.scale = model.model.encoder, model.config.d_model**0.5
        self.positions = PositionTable(self.encoder.positional_encoding, torch.float32)

    def __call__(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """(N, S) token ids, or embeddings (N, S, D), to (N, S, D)."""
        if input_ids is None or not (attention_mask is None or attention_mask.all()):
            return self.encoder.embed(input_ids, inputs_embeds, attention_mask)
        x_NSD = F.embedding(input_ids, self.encoder.embed_tokens.weight) * self.scale
        return x_NSD + self.positions.first(input_ids.shape[1], x_NSD.device)[: input_ids.shape[1]].to(x_NSD.dtype)


class _Layer:
    """One encoder layer's packed weights, with queries, keys and values as one linear layer."""

    def __init__(self, layer: Any, pack: PackedWeights) -> None:
        own, feed_forward = layer.self_attention, layer.feed_forward
        self.widths = [own.q_proj.out_features, own.k_proj.out_features, own.v_proj.out_features]
        self.project = pack.fused_linear(own.q_proj, own.k_proj, own.v_proj, scaled=own.d_k**-0.5)
        self.self_out = pack.residual_linear(own.out_proj.weight, own.out_proj.bias)
        self.first = pack.linear(feed_forward.w_1.weight, feed_forward.w_1.bias, feed_forward.activation)
        self.second = pack.residual_linear(feed_forward.w_2.weight, feed_forward.w_2.bias)
        self.self_norm, self.feed_norm = map(pack.norm, (layer.self_attention_norm, layer.feed_forward_norm))


__all__ = ["PackedEncoder", "SourceEmbedding"]
