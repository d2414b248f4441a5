"""Section 3 of "Attention Is All You Need", in the paper's order.

Shapes in names: B batch · S source · T target · Q query positions · L key positions · D d_model · H heads ·
K d_k (keys) or d_v (values) · F d_ff · V vocabulary.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .generation import PaperGenerationMixin, paper_generation_config
from .loss import (
    IGNORED_LABEL,
    check_labels,
    label_smoothed_loss,
    number_of_items,
    summed_cross_entropy,
)
from .saving import SavedWithItsCode, rename_old_weights


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
        module: Says by `training` whether dropout acts.
        query: (batch, heads, query positions, d_k).
        key: (batch, heads, key positions, d_k).
        value: (batch, heads, key positions, d_v).
        attention_mask: Added to the scores: 0 where a query may attend, the least number elsewhere.
        scaling: 1 / √d_k where not given.
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

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, is_causal: bool = False) -> None:
        super().__init__()
        assert config.d_k is not None and config.d_v is not None
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
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
        """(batch, positions, d_model) to the same shape, and the attention weights where the implementation has them.

        Args:
            hidden_states: Where the queries come from, (batch, query positions, d_model).
            attention_mask: As the attention implementation wants it.
            key_value_states: Where keys and values come from in cross-attention; the queries' own states if None.
            past_key_values: Keys and values of earlier positions; this call adds its own.
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
        # No dropout on the weights: the paper's section 5.4 names two places, and this is neither.
        heads_BQHK, weights_BHQL = attend(
            self, q_BHQK, k_BHLK, v_BHLK, attention_mask, dropout=0.0, scaling=self.d_k**-0.5, **kwargs
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

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff)
        self.w_2 = nn.Linear(config.d_ff, config.d_model)
        if config.activation_function not in ACT2FN:
            raise ValueError(
                f"There is no activation_function {config.activation_function!r}; there are {', '.join(ACT2FN)}."
            )
        self.activation = ACT2FN[config.activation_function]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(batch, positions, d_model) to the same shape."""
        return self.w_2(self.activation(self.w_1(hidden_states)))


class PositionalEncoding(nn.Module):
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same.

    Computed in float32 whenever it is asked for: nothing is stored, so there is no longest sequence, nothing to
    load, and nothing that a change of the model's dtype could round. `learned` positions are Table 3, row E.
    """

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.learned = (
            nn.Embedding(config.max_position_embeddings, config.d_model)
            if config.positional_encoding == "learned"
            else None
        )

    def forward(self, length: int, start: int | torch.Tensor = 0, device: torch.device | None = None) -> torch.Tensor:
        """Encodings of the positions `start` to `start + length - 1`, (length, d_model).

        Raises:
            ValueError: Learned positions end before.
        """
        positions = torch.arange(length, device=device) + start
        if self.learned is not None:
            # A compiled graph cannot look at `start`, which a static cache holds in a tensor.
            if not torch.compiler.is_compiling() and start + length > self.learned.num_embeddings:
                raise ValueError(
                    f"A sequence of {int(start + length)} tokens is longer than the {self.learned.num_embeddings} "
                    "learned positions (max_position_embeddings): cut it, or use sinusoidal positions, which have no "
                    "limit."
                )
            return self.learned(positions)
        exponents = torch.arange(0, self.d_model, 2, device=device, dtype=torch.float32) / self.d_model
        angles = positions[:, None].float() * 10000.0**-exponents
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Dropout(nn.Dropout):
    """Section 5.4: each value is zero with probability P_drop in training, the others grow by 1 / (1 - P_drop).

    On the CPU torch draws one number at a time for each value, a fifth of a small model's step. Here a value takes
    16 bits of a 64-bit number, so P_drop is met to the nearest 1/65536.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Any shape to the same shape."""
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

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx)
        self.self_attention_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.feed_forward = PositionwiseFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """(batch, source length, d_model) to the same shape."""
        x = hidden_states
        attended, _ = self.self_attention(x, attention_mask, **kwargs)
        x = self.self_attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DecoderLayer(GradientCheckpointingLayer):
    """Section 3.1: as the encoder's layer, with attention to the encoder's output between its two sub-layers."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config, layer_idx, is_causal=True)
        self.self_attention_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
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
        """(batch, target length, d_model) to the same shape; a decoder on its own, without a source, skips it."""
        x = hidden_states
        attended, _ = self.self_attention(x, attention_mask, past_key_values=past_key_values, **kwargs)
        x = self.self_attention_norm(x + self.dropout(attended))
        if encoder_hidden_states is not None:
            attended, _ = self.cross_attention(
                x, encoder_attention_mask, encoder_hidden_states, past_key_values=past_key_values, **kwargs
            )
            x = self.cross_attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class VanillaTransformerPreTrainedModel(SavedWithItsCode, PreTrainedModel):
    """How weights begin, and what the parts of the library may do with the model."""

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]

    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """The library knows of one embedding and the projection; one of the target's own has to grow with them."""
        resized = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = self.get_decoder()
        if not decoder.shares_embedding:
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return resized

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot uniform for projections, N(0, d_model^-½) for embeddings, zeros for biases.

        The paper gives no initialisation; this is its authors' code.
        """
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


class _Stack(VanillaTransformerPreTrainedModel):
    """What encoder and decoder share: embedding and positions (sections 3.4 and 3.5), then N layers."""

    def __init__(self, config: VanillaTransformerConfig, layers: list[nn.Module]) -> None:
        super().__init__(config)
        self._modules["embed_tokens"] = nn.Embedding(config.vocab_size, config.d_model)
        self._shared: tuple[nn.Module, ...] = ()  # In a tuple it is not registered.
        self.positional_encoding = PositionalEncoding(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()
        self._tp_plan = {}  # The configuration's plan is for the whole model, and names its stacks.

    @property
    def shares_embedding(self) -> bool:
        """Whether the stack uses the embedding of its model and has none of its own."""
        return "embed_tokens" not in self._modules

    @property
    def embed_tokens(self) -> nn.Module:
        """The stack's own embedding, or `shared` of its model, which is registered there alone.

        A module that is registered in several places is replaced in only one of them by what adapts models.
        """
        own = self._modules.get("embed_tokens")
        return self._shared[0] if own is None else own

    def share(self, embedding: nn.Module) -> None:
        """From now on the stack uses the embedding of its model, and gives its own up."""
        self._modules.pop("embed_tokens", None)
        self._shared = (embedding,)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does, with the embedding that the stack shares."""
        if self.shares_embedding:
            whole = {**self.state_dict(), "embed_tokens.weight": self.embed_tokens.weight}
            kwargs.setdefault("state_dict", whole)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "_Stack":
        """An encoder that is kept without its model takes the embedding with it to another device or type."""
        for embedding in self._shared:
            embedding._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        start: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Sections 3.4, 3.5 and 5.4: embeddings times √d_model, plus positional encodings, and the sum's dropout.

        A sentence's first token that is not padding has position 0, on whichever side the padding stands. A mask
        covers the cached tokens too, `start` of them.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__} needs either token ids or their embeddings, and not both.")
        embeddings_BTD = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        embeddings_BTD = embeddings_BTD * self.config.d_model**0.5
        length, device = embeddings_BTD.shape[1], embeddings_BTD.device
        if attention_mask is None or attention_mask.dim() != 2:
            encodings = self.positional_encoding(length, start, device)
        else:
            table = self.positional_encoding(attention_mask.shape[1], device=device)
            positions_BT = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
            encodings = nn.functional.embedding(positions_BT, table)
        return self.dropout(embeddings_BTD + encodings.to(embeddings_BTD.dtype))


def refuse_positions(kwargs: dict[str, Any]) -> None:
    """Refuses positions that a caller gives, which would be of no effect.

    Raises:
        ValueError: There are some.
    """
    for name in ("position_ids", "decoder_position_ids"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{name} cannot be given: a sentence's positions count its tokens in the attention mask, from 0. "
                "Sentences that are packed into one row have to be rows of their own."
            )


class Encoder(_Stack):
    """Section 3.1: a stack of N encoder layers over the embedded source."""

    _can_record_outputs = {
        "hidden_states": EncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
    }

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config, [EncoderLayer(config, i) for i in range(config.encoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """(batch, source length) token ids to (batch, source length, d_model)."""
        refuse_positions(kwargs)
        x = self.embed(input_ids, inputs_embeds, attention_mask)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class Decoder(_Stack):
    """Section 3.1: a stack of N decoder layers, in which no position sees a later one."""

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attention"),
    }

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config, [DecoderLayer(config, i) for i in range(config.decoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """(batch, target length) token ids to (batch, target length, d_model)."""
        refuse_positions(kwargs)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        own_cache = (
            past_key_values.self_attention_cache
            if isinstance(past_key_values, EncoderDecoderCache)
            else past_key_values
        )
        start = own_cache.get_seq_length() if own_cache is not None else 0
        x = self.embed(input_ids, inputs_embeds, attention_mask, start)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=own_cache,
        )
        source_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        for layer in self.layers:
            # Positional: gradient checkpointing and the output hooks read the arguments by place.
            x = layer(x, causal_mask, encoder_hidden_states, source_mask, past_key_values, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, past_key_values=past_key_values)


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Section 3: encoder and decoder, without the projection to the vocabulary.

    `shared` is the embedding of section 3.4: of source, target and output. With `tie_word_embeddings` off it is the
    source's alone.
    """

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.register_module("shared", None)  # It stands first: optimizers know weights by their place.
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.encoder.share(self.encoder.embed_tokens)
        if config.tie_word_embeddings:
            self.decoder.share(self.encoder.embed_tokens)
        self.shared = self.encoder.embed_tokens
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the source, which is the target's too unless `tie_word_embeddings` is off."""
        return self.shared

    def set_input_embeddings(self, value: Any) -> None:
        """Puts another embedding in the place of the shared one."""
        self.shared = value

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # In a replica of `nn.DataParallel` the stacks are still those of the original.
        if name == "shared" and not getattr(self, "_is_replica", False):
            for stack in (self.encoder, self.decoder):
                if stack.shares_embedding:
                    stack.share(value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        rename_old_weights(state_dict)
        if self.decoder.shares_embedding:
            state_dict.pop(f"{prefix}decoder.embed_tokens.weight", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _embedded(
        self, stack: _Stack, ids: torch.Tensor | None, embeddings: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Ids and embeddings for a stack, which in a replica on another device knows the original's alone."""
        if stack.shares_embedding and ids is not None and embeddings is None:
            return None, self.shared(ids)
        return ids, embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Source and shifted target to the decoder's last states, (batch, target length, d_model).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
            decoder_attention_mask: 1 on target tokens, 0 on padding, (batch, target length so far).
            encoder_outputs: What the encoder gave before, in the place of `input_ids`.
            past_key_values: Keys and values of the target's earlier positions and of the source.
            inputs_embeds: Unscaled embeddings in the place of `input_ids`.
            decoder_inputs_embeds: Unscaled embeddings in the place of `decoder_input_ids`.
            use_cache: Whether to return `past_key_values`.
        """
        if isinstance(encoder_outputs, BaseModelOutput):
            encoded = encoder_outputs
        elif encoder_outputs is not None:
            encoded = BaseModelOutput(last_hidden_state=encoder_outputs[0])
        else:
            input_ids, inputs_embeds = self._embedded(self.encoder, input_ids, inputs_embeds)
            encoded = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        decoder_input_ids, decoder_inputs_embeds = self._embedded(
            self.decoder, decoder_input_ids, decoder_inputs_embeds
        )
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class VanillaTransformerForConditionalGeneration(PaperGenerationMixin, VanillaTransformerPreTrainedModel):
    """The whole model: section 3 with the output projection, the loss of section 5.4 and the search of section 6.1."""

    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()
        self.generation_config = paper_generation_config(config)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Section 3.1: the target shifted right by one place; ignored labels become padding."""
        if self.config.decoder_start_token_id is None or self.config.pad_token_id is None:
            raise ValueError(
                "To shift labels right, config.decoder_start_token_id and config.pad_token_id have to be set: set "
                "them, or give decoder_input_ids."
            )
        start = labels.new_full((labels.shape[0], 1), self.config.decoder_start_token_id)
        shifted = torch.cat((start, labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """As `VanillaTransformerModel.forward`, to logits (batch, target length, vocabulary) and a loss.

        Args:
            labels: Target tokens, (batch, target length), -100 where they do not count. Where given, the decoder's
                input is made from them and the loss is returned.
            logits_to_keep: Only the last so many positions get logits (0: all), or those of an index tensor.
            num_items_in_batch: What the summed loss is divided by; the number of labels that count if None. A step
                of several batches gives the number of labels in all of them.
            skip_logits: Returns the loss of `labels` without logits: half the time and memory of a step may be theirs.

        The loss is the mean cross-entropy in nats a target token; in training mode the targets are smoothed by
        `config.label_smoothing` over the whole vocabulary (section 5.4), in evaluation mode they are not. A `Trainer`
        with a `label_smoothing_factor` asks for no loss and smooths by its own: never both. Another loss is set as
        `model.loss_function = f`, which is called as in the library's models: `f(logits=, labels=, vocab_size=,
        num_items_in_batch=)`.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_BTD = outputs.last_hidden_state
        logits_BTV, loss = None, None
        if not skip_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits_BTV = self._project(hidden_BTD[:, kept])
        if labels is not None:
            if logits_BTV is None and self._has_plain_loss():
                loss = self._loss_without_logits(hidden_BTD, labels, num_items_in_batch)
            else:
                loss = self.loss_function(
                    logits=self._project(hidden_BTD) if logits_BTV is None else logits_BTV,
                    labels=labels,
                    vocab_size=self.config.vocab_size,
                    num_items_in_batch=num_items_in_batch,
                    **kwargs,
                )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits_BTV,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def _project(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """Section 3.4: the shared embedding is the output projection too, with all that an adapter adds to it.

        LoRA wraps a module and leaves its weight as it is until it is merged: all rows are asked of the module.
        """
        if not self._has_adapted_embedding():
            return self.lm_head(hidden_BTD)
        every_type = torch.arange(self.lm_head.out_features, device=hidden_BTD.device)
        return nn.functional.linear(hidden_BTD, self.model.shared(every_type), self.lm_head.bias)

    def _has_adapted_embedding(self) -> bool:
        shared = self.model.shared
        return (
            not isinstance(shared, nn.Embedding)
            and isinstance(self.lm_head, nn.Linear)
            and getattr(shared, "weight", None) is self.lm_head.weight
        )

    @property
    def loss_function(self) -> Callable[..., torch.Tensor]:
        """Section 5.4, or what was set in its place."""
        # What is a module itself is not seen by the setter.
        custom = getattr(self, "_loss_function", None) or self._modules.get("loss_function")
        return custom or partial(label_smoothed_loss, label_smoothing=self._label_smoothing())

    @loss_function.setter
    def loss_function(self, value: Callable[..., torch.Tensor]) -> None:
        self._loss_function = value

    def _label_smoothing(self) -> float:
        return float(self.config.label_smoothing) if self.training else 0.0

    def _has_plain_loss(self) -> bool:
        """Whether loss and projection are those of the paper, and none that others have set or adapted."""
        return (
            isinstance(self.loss_function, partial)
            and self.loss_function.func is label_smoothed_loss
            and isinstance(self.lm_head, nn.Linear)
            and not self._has_adapted_embedding()
        )

    def _loss_without_logits(
        self, hidden_BTD: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        total = summed_cross_entropy(
            hidden_BTD.flatten(0, 1),
            self.lm_head.weight,
            labels.flatten(),
            self._label_smoothing(),
            self.lm_head.bias,
        )
        return total / number_of_items(labels, num_items_in_batch)


VanillaTransformerModel.register_for_auto_class("AutoModel")
VanillaTransformerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
