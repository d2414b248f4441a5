"""Section 3 of "Attention Is All You Need", in the paper's order: the parts of the layers of every family.

Shapes in names: B batch · Q query positions · L key positions · D d_model · H heads · K d_k (keys) or d_v (values).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vanilla_transformer import VanillaTransformerBaseConfig


def scaled_dot_product_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 3.2.1, Eq. 1: softmax(QKᵀ / √d_k) V, written out; `attn_implementation="eager"` uses it.

    Args:
        module: Its `training` says whether dropout acts.
        query: (batch, heads, query positions, d_k).
        key: (batch, heads, key positions, d_k).
        value: (batch, heads, key positions, d_v).
        attention_mask: Added to the scores: 0 where a query may attend, the lowest number elsewhere.
        scaling: 1 / √d_k by default.
        dropout: Share of the attention weights set to zero in training. The paper has none here.

    Returns:
        The output (batch, query positions, heads, d_v) and the weights (batch, heads, query, key positions).
    """
    q_BHQK, k_BHLK, v_BHLK = query, key, value
    scores_BHQL = q_BHQK @ k_BHLK.mT * (q_BHQK.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores_BHQL = scores_BHQL + attention_mask
    weights_BHQL = scores_BHQL.softmax(dim=-1)
    weights_BHQL = nn.functional.dropout(weights_BHQL, dropout, module.training)
    return (weights_BHQL @ v_BHLK).transpose(1, 2).contiguous(), weights_BHQL


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: h attention functions side by side, each on its own projections, joined by W^O.

    Section 3.2.3 uses it in three places: over the source in the encoder, over the target's past in the decoder
    (`is_causal`), and from the decoder to the encoder's output (`key_value_states`).
    """

    def __init__(self, config: VanillaTransformerBaseConfig, layer_idx: int, is_causal: bool = False) -> None:
        super().__init__()
        assert config.d_k is not None and config.d_v is not None
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.attention_dropout = config.attention_dropout
        self.d_k, self.d_v = config.d_k, config.d_v
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.d_model, config.num_heads * self.d_k, bias=bias)
        self.k_proj = nn.Linear(config.d_model, config.num_heads * self.d_k, bias=bias)
        self.v_proj = nn.Linear(config.d_model, config.num_heads * self.d_v, bias=bias)
        self.out_proj = nn.Linear(config.num_heads * self.d_v, config.d_model, bias=bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Maps (batch, positions, d_model) to the same shape, and attention weights where the backend has them.

        Args:
            hidden_states: States that give the queries, (batch, query positions, d_model).
            attention_mask: In the form that the attention implementation expects.
            key_value_states: States that give keys and values in cross-attention; those of the queries if None.
            past_key_values: Keys and values of earlier positions, to which this call adds its own.
        """
        q_BHQK = self._heads(self.q_proj(hidden_states), self.d_k)
        k_BHLK, v_BHLK = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        implementation = self.config._attn_implementation or "eager"
        if "flash" in implementation and self.d_k != self.d_v:
            raise ValueError(
                f"Flash attention needs keys and values of one width, not d_k {self.d_k} and d_v {self.d_v}: "
                'load the model with attn_implementation="sdpa".'
            )
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, scaled_dot_product_attention)
        dropout = self.attention_dropout if self.training else 0.0
        heads_BQHK, weights_BHQL = attend(
            self, q_BHQK, k_BHLK, v_BHLK, attention_mask, dropout=dropout, scaling=self.d_k**-0.5, **kwargs
        )
        return self.out_proj(heads_BQHK.flatten(2)), weights_BHQL

    @staticmethod
    def _heads(projected: torch.Tensor, width: int) -> torch.Tensor:
        return projected.unflatten(-1, (-1, width)).transpose(1, 2)

    def _keys_and_values(
        self, hidden_states: torch.Tensor, key_value_states: torch.Tensor | None, past_key_values: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        is_cross_attention = key_value_states is not None
        cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            if is_cross_attention and past_key_values.is_updated.get(self.layer_idx):
                layer: Any = past_key_values.cross_attention_cache.layers[self.layer_idx]
                return layer.keys, layer.values
            cache = (
                past_key_values.cross_attention_cache if is_cross_attention else past_key_values.self_attention_cache
            )
        states = hidden_states if key_value_states is None else key_value_states
        k_BHLK = self._heads(self.k_proj(states), self.d_k)
        v_BHLK = self._heads(self.v_proj(states), self.d_v)
        if cache is not None:
            k_BHLK, v_BHLK = cache.update(k_BHLK, v_BHLK, self.layer_idx)
            if is_cross_attention and isinstance(past_key_values, EncoderDecoderCache):
                past_key_values.is_updated[self.layer_idx] = True
        return k_BHLK, v_BHLK


class PositionwiseFeedForward(nn.Module):
    """Section 3.3, Eq. 2: max(0, xW₁ + b₁)W₂ + b₂, the same at every position."""

    def __init__(self, config: VanillaTransformerBaseConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff)
        self.w_2 = nn.Linear(config.d_ff, config.d_model)
        if config.activation_function not in ACT2FN:
            raise ValueError(
                f"There is no activation_function {config.activation_function!r}; there are {', '.join(ACT2FN)}."
            )
        self.activation = ACT2FN[config.activation_function]
        self.activation_dropout = Dropout(config.activation_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Maps (batch, positions, d_model) to the same shape."""
        return self.w_2(self.activation_dropout(self.activation(self.w_1(hidden_states))))


class PositionalEncoding(nn.Module):
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same.

    Computed in float32 at each call: nothing is stored, so sequences have no maximum length, nothing has to be loaded,
    and a change of the model's dtype rounds nothing. `learned` positions are Table 3, row E.
    """

    def __init__(self, config: VanillaTransformerBaseConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.learned = (
            nn.Embedding(config.max_position_embeddings, config.d_model)
            if config.positional_encoding == "learned"
            else None
        )

    def forward(self, length: int, start: int | torch.Tensor = 0, device: torch.device | None = None) -> torch.Tensor:
        """Returns the encodings of positions `start` to `start + length - 1`, (length, d_model).

        Raises:
            ValueError: There are fewer learned positions.
        """
        if self.learned is not None and not torch.compiler.is_compiling():
            # A compiled graph cannot read `start`, which a static cache holds in a tensor.
            self._check_room(int(start + length))
        return self._encode(torch.arange(length, device=device) + start)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns the encodings of a caller's own positions, (batch, length) to (batch, length, d_model).

        Raises:
            ValueError: There are fewer learned positions; on an accelerator, where checking would stall it, the lookup
                fails.
        """
        if self.learned is not None and positions.device.type == "cpu" and not torch.compiler.is_compiling():
            self._check_room(int(positions.max()) + 1)
        return self._encode(positions)

    def _encode(self, positions: torch.Tensor) -> torch.Tensor:
        if self.learned is not None:
            return self.learned(positions)
        exponents = torch.arange(0, self.d_model, 2, device=positions.device, dtype=torch.float32) / self.d_model
        angles = positions[..., None].float() * 10000.0**-exponents
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)

    def _check_room(self, length: int) -> None:
        if self.learned is not None and length > self.learned.num_embeddings:
            raise ValueError(
                f"A sequence of {length} tokens is longer than the {self.learned.num_embeddings} learned positions "
                "(max_position_embeddings): cut it, or use sinusoidal positions, which have no limit."
            )


class Dropout(nn.Dropout):
    """Section 5.4: in training, sets each value to 0 with probability P_drop and divides the others by 1 - P_drop.

    On the CPU torch draws one number at a time for each value, which takes a fifth of a small model's step. Here a
    value takes 16 bits of a 64-bit number, so P_drop is met to the nearest 1/65536.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps any shape to the same shape."""
        if not self.training or self.p == 0:
            return input
        dropped_of_65536 = round(self.p * 65536)
        if input.device.type != "cpu" or torch.compiler.is_compiling() or dropped_of_65536 == 65536:
            return super().forward(input)
        bits = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        kept = bits.view(torch.int16)[: input.numel()].view(input.shape) >= dropped_of_65536 - 32768
        return input * kept.to(input.dtype).mul_(65536 / (65536 - dropped_of_65536))


class EncoderLayer(GradientCheckpointingLayer):
    """Section 3.1: LayerNorm(x + Sublayer(x)) around self-attention and the feed-forward network."""

    def __init__(self, config: VanillaTransformerBaseConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx)
        self.self_attention_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.feed_forward = PositionwiseFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Maps (batch, source length, d_model) to the same shape."""
        x = hidden_states
        attended, _ = self.self_attention(x, attention_mask, **kwargs)
        x = self.self_attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(GradientCheckpointingLayer):
    """Section 3.1: like the encoder's layer, with attention to the encoder's output between its two sub-layers.

    A decoder-only model has no such output and no sub-layer that attends to it (`has_cross_attention`).
    """

    def __init__(self, config: VanillaTransformerBaseConfig, layer_idx: int, has_cross_attention: bool = True) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx, is_causal=True)
        self.self_attention_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        if has_cross_attention:
            self.cross_attention = MultiHeadAttention(config, layer_idx)
            self.cross_attention_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.feed_forward = PositionwiseFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Maps (batch, target length, d_model) to the same shape; a decoder without a source skips cross-attention."""
        x = hidden_states
        attended, _ = self.self_attention(x, attention_mask, past_key_values=past_key_values, **kwargs)
        x = self.self_attention_norm(x + self.dropout(attended))
        if encoder_hidden_states is not None:
            attended, _ = self.cross_attention(
                x, encoder_attention_mask, encoder_hidden_states, past_key_values=past_key_values, **kwargs
            )
            x = self.cross_attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
