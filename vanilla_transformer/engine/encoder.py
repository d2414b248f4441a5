"""The encoder of section 3 for decoding, without gradients.

Shapes in names: N sentences · S source · R = N·S rows · D d_model · H heads · K d_k (keys) or d_v (values).
"""

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from .linear import Layer, Weights


class Encoder:
    """The encoder's pass over a batch of sentences.

    Args:
        model: A model with an encoder, which is used.
        weights: Makes the linear layers.
    """

    def __init__(self, model: PreTrainedModel, weights: Weights) -> None:
        encoder = model.model.encoder
        attention = encoder.layers[0].self_attention
        self.dtype, self.num_heads = weights.activations, len(attention.q_proj.weight) // attention.d_k
        self.embedding, self.scale = weights.embedding(encoder.embed_tokens), encoder.config.d_model**0.5
        self.positions = weights.positions(encoder.positional_encoding)
        self.layers = [Layer(layer, weights) for layer in encoder.layers]

    def __call__(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps token ids (N, S), or embeddings (N, S, D), to states (N, S, D)."""
        states = F.embedding(input_ids, self.embedding) if inputs_embeds is None else inputs_embeds  # type: ignore
        length, device = states.shape[1], states.device
        if attention_mask is None or attention_mask.all():
            encodings, may_attend = self.positions.first(length, device)[:length], None
        else:
            # Section 3.5: a sentence's first token that is not padding has position 0.
            places_NS = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
            encodings, may_attend = self.positions.at(places_NS, length), attention_mask[:, None, None, :].bool()
        x_NSD = (states * self.scale + encodings.to(states.dtype)).to(self.dtype)
        x = x_NSD.flatten(0, 1)
        for layer in self.layers:
            q_NHSK, k_NHSK, v_NHSK = (self._heads(part, len(x_NSD)) for part in layer.project(x))
            # The queries' weights include 1 / √d_k.
            attended = F.scaled_dot_product_attention(q_NHSK, k_NHSK, v_NHSK, may_attend, scale=1.0)
            x = layer.self_norm(layer.self_out(attended.transpose(1, 2).reshape(x.shape[0], -1), x))
            x = layer.feed_norm(layer.second(layer.first(x), x))
        return x.view_as(x_NSD)

    def _heads(self, projected_RD: torch.Tensor, sentences: int) -> torch.Tensor:
        """Reshapes (N·S, H·K) to (N, H, S, K)."""
        width = projected_RD.shape[1] // self.num_heads
        return projected_RD.view(sentences, -1, self.num_heads, width).transpose(1, 2)
