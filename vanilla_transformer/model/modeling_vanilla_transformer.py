"""Section 3 of "Attention Is All You Need", in the paper's order, the loss of section 5.4, and the models.

From top to bottom: attention, feed-forward networks, positions, layers, stacks, loss, heads, encoder-decoder.

Shapes in names: B batch · S source · T positions · Q query positions · L key positions · D d_model · H heads · K d_k
(keys) or d_v (values) · V vocabulary.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
import transformers
from torch import nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation.continuous_batching import PagedAttentionCache
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

from .configuration_vanilla_transformer import (
    VanillaTransformerBaseConfig,
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerEncoderConfig,
)
from .generation_vanilla_transformer import PaperGenerationMixin, paper_generation_config
from .pipeline_vanilla_transformer import AutoModels, HubModel, name_hub_classes

IGNORED_LABEL = -100
AnyCache = TypeVar("AnyCache")
# The cache's name in the outputs of the installed transformers, which renamed it in version 5.24.
CACHE_FIELD = "cache" if "cache" in Seq2SeqModelOutput.__dataclass_fields__ else "past_key_values"
# Keyword arguments that a `forward` accepts beyond its named parameters.
ACCEPTED_KEYWORDS = {
    # Read by the decorators of transformers around a `forward`.
    *("output_attentions", "output_hidden_states", "return_dict", "use_cache"),
    # Passed by `generate` to an encoder; the labels come from `Seq2SeqTrainer`.
    *("labels", "logits_to_keep"),
    # Passed by `Trainer` and by this package's training to every model. Classifiers have few logits to skip.
    *("num_items_in_batch", "skip_logits"),
    # Written by tokenizers of other models, which mark the two texts of a pair; the texts also have a separator.
    "token_type_ids",
}
# What a decoder without a source accepts as well, for texts that are packed into one row.
PACKING_KEYWORDS = {
    # Read by attention functions.
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "is_causal"),
    # Read by the cache of continuous batching, or used outside the model.
    *("read_index", "write_index", "block_table", "logits_indices", "logits_processor_args"),
}


def scaled_dot_product_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
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
        cache: Cache | None = None,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Maps (batch, positions, d_model) to the same shape, and attention weights where the backend has them.

        Args:
            hidden_states: States that give the queries, (batch, query positions, d_model).
            attention_mask: In the form that the attention implementation expects.
            key_value_states: States that give keys and values in cross-attention; those of the queries if None.
            cache: Keys and values of earlier positions, to which this call adds its own.
            kwargs: Arguments of the attention implementation, such as the indices of continuous batching.
        """
        queries = hidden_states
        if key_value_states is not None:
            # A source may have several rows, such as the hypotheses of a beam: they are more queries of the same keys.
            queries = hidden_states.reshape(key_value_states.shape[0], -1, hidden_states.shape[-1])
        q_BHQK = self._heads(self.q_proj(queries), self.d_k)
        k_BHLK, v_BHLK = self._keys_and_values(hidden_states, key_value_states, cache, kwargs)
        implementation = self.config._attn_implementation or "eager"
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, scaled_dot_product_attention)
        dropout = self.attention_dropout if self.training else 0.0
        heads_BQHK, weights_BHQL = attend(
            self, q_BHQK, k_BHLK, v_BHLK, attention_mask, dropout=dropout, scaling=self.d_k**-0.5, **kwargs
        )
        rows, length = hidden_states.shape[:2]
        if weights_BHQL is not None and weights_BHQL.shape[0] != rows:
            weights_BHQL = weights_BHQL.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
        return self.out_proj(heads_BQHK.reshape(rows, length, -1)), weights_BHQL

    @staticmethod
    def _heads(projected: torch.Tensor, width: int) -> torch.Tensor:
        rows, length, _ = projected.shape
        return projected.view(rows, length, -1, width).transpose(1, 2)

    def _keys_and_values(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        cache: Cache | None,
        kwargs: dict[str, object],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = hidden_states if key_value_states is None else key_value_states
        if isinstance(cache, EncoderDecoderCache):
            both, cache = cache, cache.self_attention_cache
            if key_value_states is not None:
                cache = both.cross_attention_cache
                if both.is_updated.get(self.layer_idx):
                    layer: Any = cache.layers[self.layer_idx]
                    return layer.keys, layer.values
                both.is_updated[self.layer_idx] = True
        k_BHLK = self._heads(self.k_proj(states), self.d_k)
        v_BHLK = self._heads(self.v_proj(states), self.d_v)
        if cache is None:
            return k_BHLK, v_BHLK
        if CACHE_FIELD != "cache" and isinstance(cache, PagedAttentionCache):
            # Before transformers 5.24 attention functions update it.
            kwargs["cache"] = cache
            return k_BHLK, v_BHLK
        # A paged cache reads its indices from the keywords, and changes them for this layer.
        return cache.update(k_BHLK, v_BHLK, self.layer_idx, kwargs=kwargs)


class PositionwiseFeedForward(nn.Module):
    """Section 3.3, Eq. 2: max(0, xW₁ + b₁)W₂ + b₂, the same at every position."""

    def __init__(self, config: VanillaTransformerBaseConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff)
        self.w_2 = nn.Linear(config.d_ff, config.d_model)
        self.activation = ACT2FN[config.activation_function]
        self.activation_dropout = Dropout(config.activation_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Maps (batch, positions, d_model) to the same shape."""
        return self.w_2(self.activation_dropout(self.activation(self.w_1(hidden_states))))


class PositionalEncoding(nn.Module):
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same.

    They are computed in float32 and are not a weight, so sequences have no maximum length, no file contains them, and
    a change of the model's dtype does not round them. `learned` positions are Table 3, row E.
    """

    def __init__(self, config: VanillaTransformerBaseConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self._first = torch.empty(0, config.d_model)
        self.learned: nn.Embedding | None = None
        if config.positional_encoding == "learned":
            self.learned = nn.Embedding(config.max_position_embeddings, config.d_model)

    def forward(self, length: int, start: int | torch.Tensor = 0, device: torch.device | None = None) -> torch.Tensor:
        """Returns the encodings of positions `start` to `start + length - 1`, (length, d_model)."""
        self._check_room(start + length)
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if self.learned is not None or not isinstance(start, int) or torch.is_grad_enabled() or is_traced:
            return self._encode(torch.arange(length, device=device) + start)
        # Decoding reads one position per step, so the encodings of the first positions are kept.
        first = self._first
        if len(first) < start + length or first.device != device:
            with torch.inference_mode(False):
                self._first = first = self._encode(torch.arange(2 * (start + length), device=device))
        return first[start : start + length]

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns the encodings of a caller's own positions, (batch, length) to (batch, length, d_model).

        Where there are fewer learned positions, an accelerator, which checking would stall, fails at the lookup.
        """
        if self.learned is not None and positions.device.type == "cpu":
            self._check_room(positions.max() + 1)
        return self._encode(positions)

    def _encode(self, positions: torch.Tensor) -> torch.Tensor:
        if self.learned is not None:
            return self.learned(positions)
        exponents = torch.arange(0, self.d_model, 2, device=positions.device, dtype=torch.float32) / self.d_model
        angles = positions[..., None].float() * 10000.0**-exponents
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)

    def _check_room(self, length: int | torch.Tensor) -> None:
        # A compiled graph cannot read a length that a static cache holds in a tensor.
        if self.learned is None or torch.compiler.is_compiling() or length <= self.learned.num_embeddings:
            return
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
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: object
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
        cache: Cache | None = None,
        **kwargs: object,
    ) -> torch.Tensor:
        """Maps (batch, target length, d_model) to the same shape; a decoder without a source skips cross-attention."""
        x = hidden_states
        attended, _ = self.self_attention(x, attention_mask, cache=cache, **kwargs)
        x = self.self_attention_norm(x + self.dropout(attended))
        if encoder_hidden_states is not None:
            attended, _ = self.cross_attention(x, encoder_attention_mask, encoder_hidden_states, cache=cache, **kwargs)
            x = self.cross_attention_norm(x + self.dropout(attended))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


def check_mask(mask_BT: torch.Tensor | None, length: int) -> None:
    """Refuses a mask (batch, tokens) of another length: which tokens it covers would be unclear."""
    if mask_BT is None or mask_BT.dim() != 2 or torch.compiler.is_compiling() or mask_BT.shape[1] == length:
        return
    raise ValueError(
        f"An attention mask is for {mask_BT.shape[1]:,} tokens, and there are {length:,}: give one for each."
    )


def can_be_read(tensor: torch.Tensor | None) -> bool:
    """Tells whether the host can read a mask, to find that nothing is masked, without waiting for an accelerator."""
    return tensor is None or tensor.device.type == "cpu"


def reject_unused(kwargs: dict[str, Any], packs: bool = False) -> None:
    """Raise TypeError for a keyword argument with a value that `forward` does not use.

    A future transformers may rename an argument, and a caller may misspell one. Ignoring it would silently change the
    output. For positions, a ValueError says why they cannot be given.

    Args:
        packs: Whether the model reads texts that are packed into one row.
    """
    for name, value in kwargs.items():
        if value is None or name in ACCEPTED_KEYWORDS or (packs and name in PACKING_KEYWORDS):
            continue
        if name in ("position_ids", "decoder_position_ids"):
            raise ValueError(
                f"{name} cannot be given: a sentence's positions count its tokens in the attention mask, from 0. "
                "Sentences that are packed into one row have to be rows of their own."
            )
        raise TypeError(
            f"The model does not use the argument {name}: check its spelling, or remove the column from the batch. If "
            f"transformers passed it, this code does not support transformers {transformers.__version__}."
        )


def given_cache(cache: AnyCache | None, past_key_values: AnyCache | None) -> AnyCache | None:
    """Return the cache that the caller passed under its new name, or under its old name with a deprecation warning.

    Before transformers 5.24 the old name is the usual one, so no warning is given.

    Raises:
        ValueError: Both are given.
    """
    if cache is not None and past_key_values is not None:
        raise ValueError(
            "cache and past_key_values are two names of one argument, and both were passed. If you did not pass them "
            f"yourself, a library that you use does not support transformers {transformers.__version__} yet."
        )
    if past_key_values is None:
        return cache
    if CACHE_FIELD == "cache" and not torch.compiler.is_compiling():
        warnings.warn("`past_key_values` is deprecated: use `cache` instead.", FutureWarning, stacklevel=3)
    return past_key_values


def check_cache(cache: object, *kinds: type) -> None:
    """Raise TypeError if a cache is of none of these kinds."""
    if cache is not None and not isinstance(cache, kinds):
        raise TypeError(f"cache must be a {kinds[0].__name__}, not a {type(cache).__name__}.")


def in_outputs(cache: Any) -> dict[str, Any]:
    """Return the cache under its name in the outputs of the installed transformers."""
    return {CACHE_FIELD: cache}


class VanillaTransformerPreTrainedModel(HubModel):
    """Initial weights, and the model's abilities as the library's tools know them, in all three families."""

    config: VanillaTransformerBaseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot uniform for projections, N(0, d_model^-½) for embeddings, zeros for biases.

        The paper gives no initialisation; this is the one of its authors' code.
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


class Stack(VanillaTransformerPreTrainedModel):
    """Shared parts of encoder and decoder: embedding and positions (sections 3.4 and 3.5), then N layers."""

    # transformers turns caching off in a stack that has this attribute, and sets it.
    gradient_checkpointing = False

    def __init__(self, config: VanillaTransformerBaseConfig, layers: Sequence[nn.Module]) -> None:
        super().__init__(config)
        self.embed_tokens: nn.Module = nn.Embedding(config.vocab_size, config.d_model)
        self.positional_encoding = PositionalEncoding(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.post_init()

    @property
    def shares_embedding(self) -> bool:
        """Tells whether the stack uses the embedding of its model instead of its own."""
        return "embed_tokens" not in self._modules

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Include a shared embedding if the stack is used without its model, as in `get_encoder().parameters()`."""
        is_root = memo is None
        yield from super().named_modules(memo, prefix, remove_duplicate)
        if is_root and self.shares_embedding:
            name = f"{prefix}.embed_tokens" if prefix else "embed_tokens"
            yield from self.embed_tokens.named_modules(None, name, remove_duplicate)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move or convert a shared embedding with the stack, as in `get_encoder().to(device)`."""
        if self.shares_embedding:
            self.embed_tokens._apply(fn)
        return super()._apply(fn, recurse)

    def share(self, embedding: nn.Module) -> None:
        """Makes the stack use its model's embedding, which the model alone registers.

        If a module is registered in several places, tools that adapt models replace it in only one of them.
        """
        self._modules.pop("embed_tokens", None)
        self.__dict__["embed_tokens"] = embedding

    def _save_to_state_dict(self, destination: dict[str, object], prefix: str, keep_vars: bool) -> None:
        """Saves a shared embedding with a stack that is saved alone, and with a decoder that an adapter has untied."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        is_untied = isinstance(self, Decoder) and not self.config.tie_word_embeddings
        if self.shares_embedding and (not prefix or is_untied):
            weight: Any = self.embed_tokens.weight
            destination[f"{prefix}embed_tokens.weight"] = weight.detach().clone()

    def embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        start: int | torch.Tensor = 0,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sections 3.4, 3.5 and 5.4: embeddings times √d_model, plus positional encodings, with dropout on the sum.

        A sentence's first token that is not padding has position 0, on whichever side the padding is. A mask also
        covers the `start` cached tokens. Explicit positions override both.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__} needs either token ids or their embeddings, and not both.")
        embeddings_BTD = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        embeddings_BTD = embeddings_BTD * self.config.d_model**0.5
        length, device = embeddings_BTD.shape[1], embeddings_BTD.device
        if isinstance(start, int):
            check_mask(attention_mask, start + length)
        if position_ids is not None:
            encodings = self.positional_encoding.at(position_ids)
        elif attention_mask is None or attention_mask.dim() != 2:
            encodings = self.positional_encoding(length, start, device)
        else:
            positions_BT = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
            width, learned = attention_mask.shape[1], self.positional_encoding.learned
            if learned is not None and width > learned.num_embeddings:  # Padding needs no room.
                width = int(positions_BT.max()) + 1
            table = self.positional_encoding(width, device=device)
            encodings = nn.functional.embedding(positions_BT, table)
        return self.dropout(embeddings_BTD + encodings.to(embeddings_BTD.dtype))


class Encoder(Stack):
    """Section 3.1: a stack of N encoder layers over the embedded source."""

    config: VanillaTransformerConfig

    _can_record_outputs = {
        "hidden_states": EncoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
    }

    def __init__(self, config: VanillaTransformerConfig | VanillaTransformerEncoderConfig) -> None:
        super().__init__(config, [EncoderLayer(config, i) for i in range(config.encoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: object,
    ) -> BaseModelOutput:
        """Maps token ids (batch, source length) to states (batch, source length, d_model)."""
        reject_unused(kwargs)
        x = self.embed(input_ids, inputs_embeds, attention_mask)
        mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            allow_is_bidirectional_skip=can_be_read(attention_mask),
        )
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class Decoder(Stack):
    """Section 3.1: a stack of N decoder layers in which no position sees a later one.

    Attributes:
        has_source: Whether its layers attend to an encoder's output.
    """

    has_source = True
    config: VanillaTransformerConfig
    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attention"),
    }

    def __init__(self, config: VanillaTransformerConfig | VanillaTransformerDecoderConfig) -> None:
        super().__init__(config, [DecoderLayer(config, i, self.has_source) for i in range(config.decoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Maps token ids (batch, target length) to the last states, (batch, target length, d_model).

        Args:
            input_ids: Tokens, (batch, target length).
            attention_mask: 1 on tokens, 0 on padding, (batch, target length including cached tokens).
            position_ids: Positions from 0 for a decoder without a source, (batch, target length); by default they
                count the tokens in the mask. If they restart within a row, the texts packed there do not see each
                other, as long as there is neither a mask nor a cache (`use_cache=False`, or labels).
            past_key_values: The name of `cache` before transformers 5.24.
            inputs_embeds: Unscaled embeddings instead of `input_ids`.
            use_cache: Whether to return the cache.
            encoder_hidden_states: The encoder's output, (batch, source length, d_model).
            encoder_attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            cache: Keys and values of earlier positions.
        """
        given = {**kwargs, "position_ids": position_ids} if self.has_source else kwargs
        reject_unused(given, packs=not self.has_source)
        cache = given_cache(cache, past_key_values)
        check_cache(cache, Cache, PagedAttentionCache)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
            if self.has_source:
                cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        elif self.has_source and not isinstance(cache, EncoderDecoderCache | None):
            # It has no room for the source.
            cache = EncoderDecoderCache(cache, DynamicCache(config=self.config))
        # A paged cache holds many texts and has no length: continuous batching passes their positions and their mask.
        is_paged = isinstance(cache, PagedAttentionCache)
        start = 0 if cache is None or is_paged else cache.get_seq_length()
        x = self.embed(input_ids, inputs_embeds, attention_mask, start, position_ids)
        causal_mask = create_causal_mask(
            # By position: transformers 5.24 renamed the fourth, and before, it could not be a paged cache.
            self.config,
            x,
            attention_mask,
            None if is_paged and CACHE_FIELD != "cache" else cache,
            position_ids=position_ids,
            allow_is_causal_skip=can_be_read(attention_mask),
        )
        if not isinstance(causal_mask, torch.Tensor | None) and getattr(cache, "is_compileable", False):
            # The mask reads the length of the cache only after the layers have updated the cache.
            raise ValueError("flex_attention cannot be combined with a static cache: use sdpa, or another cache.")
        source_mask = None
        if encoder_hidden_states is not None:
            check_mask(encoder_attention_mask, encoder_hidden_states.shape[1])
            source_mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=x.reshape(encoder_hidden_states.shape[0], -1, x.shape[-1]),
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
                allow_is_bidirectional_skip=can_be_read(encoder_attention_mask),
            )
            if isinstance(source_mask, torch.Tensor) and source_mask.dim() == 2 and len(source_mask) != len(x):
                # Flash attention finds padding by such a mask, and then supports only one query per row.
                hypotheses = len(x) // len(source_mask)
                encoder_hidden_states = encoder_hidden_states.repeat_interleave(hypotheses, 0)
                source_mask = source_mask.repeat_interleave(hypotheses, 0)
        for layer in self.layers:
            # Gradient checkpointing finds states by their position and the cache by its name.
            x = layer(x, causal_mask, encoder_hidden_states, source_mask, cache=cache, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, **in_outputs(cache))


def label_smoothed_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Section 5.4: mean cross-entropy in nats per label, against 1 - ε_ls on the label and ε_ls / V on every type.

    Args:
        logits: (batch, target length, vocabulary), or (batch, classes).
        labels: The same shape without its last dimension; -100 where a label does not count.
        num_items_in_batch: Divisor of the sum; the number of labels that count if None.
        label_smoothing: ε_ls.
    """
    total = nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return total / number_of_items(labels, num_items_in_batch)


def number_of_items(labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor | int:
    """Returns the divisor of a summed loss: the given number, or the number of labels that count."""
    if num_items_in_batch is None:
        return (labels != IGNORED_LABEL).sum().clamp(min=1)
    return num_items_in_batch.to(labels.device) if isinstance(num_items_in_batch, torch.Tensor) else num_items_in_batch


class Head(HubModel):
    """What a model's last states become: outputs, and the loss of section 5.4, which may be replaced."""

    own_loss: Any

    @property
    def loss_function(self) -> Callable[..., torch.Tensor]:
        """Section 5.4, or the loss set in its place."""
        # Torch registers a module that is set, and calls no setter for it.
        return self._modules.get("loss_function") or getattr(self, "_loss_function", None) or self.own_loss

    @loss_function.setter
    def loss_function(self, value: Callable[..., torch.Tensor]) -> None:
        self._loss_function = value

    def _label_smoothing(self) -> float:
        return float(self.config.label_smoothing) if self.training else 0.0


class LanguageModelHead(Head):
    """Section 3.4: the embedding as the output projection `lm_head`: logits, and the loss with or without them.

    Attributes:
        summed_cross_entropy: Computes the loss without all logits. The package sets it; the code that is saved with a
            model has none, and computes all logits.
    """

    lm_head: Any
    summed_cross_entropy: ClassVar[Callable[..., torch.Tensor] | None] = None

    def _logits_and_loss(
        self,
        hidden_BTD: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        skip_logits: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns logits (batch, target length, vocabulary) unless skipped, and the loss if there are labels."""
        logits_BTV = None
        if not skip_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits_BTV = self.lm_head(hidden_BTD[:, kept])
        if labels is None:
            return logits_BTV, None
        is_adapted = self.loss_function != self.own_loss or not isinstance(self.lm_head, nn.Linear)
        if skip_logits and not is_adapted and self.summed_cross_entropy is not None:
            hidden_BTD, labels = self._aligned(hidden_BTD, labels, kwargs.get("shift_labels"))
            weight, bias, smoothing = self.lm_head.weight, self.lm_head.bias, self._label_smoothing()
            total = self.summed_cross_entropy(hidden_BTD.flatten(0, 1), weight, labels.flatten(), smoothing, bias)
            return None, total / number_of_items(labels, num_items_in_batch)
        loss = self.loss_function(
            logits=self.lm_head(hidden_BTD) if logits_BTV is None else logits_BTV,
            labels=labels,
            vocab_size=self.config.vocab_size,
            num_items_in_batch=num_items_in_batch,
            **kwargs,
        )
        return logits_BTV, loss

    def own_loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Section 5.4: mean cross-entropy over the labels that count, smoothed in training mode."""
        logits, labels = self._aligned(logits, labels, shift_labels)
        return label_smoothed_loss(logits, labels, num_items_in_batch, self._label_smoothing())

    def _aligned(
        self, outputs: torch.Tensor, labels: torch.Tensor, shift_labels: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a model's outputs, each with the label that it predicts."""
        return outputs, labels


class EncoderDecoderHead(LanguageModelHead):
    """The head of every encoder-decoder: the decoder reads the target shifted right."""

    model: Any

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Section 3.1: shifts the target right by one place; ignored labels become padding."""
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
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        cache: EncoderDecoderCache | None = None,
        **kwargs: object,
    ) -> Seq2SeqLMOutput:
        """The model's `forward`, with logits (batch, target length, vocabulary) and a loss.

        Args:
            labels: Target tokens, (batch, target length), -100 where a label does not count. If given, the decoder's
                input is made from them and the loss is returned.
            logits_to_keep: Number of last positions that get logits (0: all), or an index tensor of positions.
            num_items_in_batch: Divisor of the summed loss; the number of labels that count if None. A step of several
                batches gives the number of labels in all of them.
            skip_logits: Returns the loss of `labels` without logits: they can take half the time and memory of a step.

        The loss is the mean cross-entropy in nats per target token; in training mode the targets are smoothed by
        `config.label_smoothing` over the whole vocabulary (section 5.4), in evaluation mode they are not. A `Trainer`
        with a `label_smoothing_factor` requests no loss and smooths by itself: never both. Set another loss as
        `model.loss_function = f`, which is called as in the library's models: `f(logits=, labels=, vocab_size=,
        num_items_in_batch=)`.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        elif decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "Neither labels nor decoder_input_ids are given. A Trainer with label_smoothing_factor keeps them to "
                "itself: give it DataCollatorForSeq2Seq(tokenizer, model=model), which adds them."
            )
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=given_cache(cache, past_key_values),
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits_BTV, loss = self._logits_and_loss(
            outputs.last_hidden_state, labels, num_items_in_batch, logits_to_keep, skip_logits, **kwargs
        )
        others = {name: part for name, part in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits_BTV, **others)


class _EncoderDecoder(VanillaTransformerPreTrainedModel):
    """Shared parts of the encoder-decoder, with its head and without."""

    config: VanillaTransformerConfig
    _input_embed_layer = "shared"

    def _resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        """Resizes a separate target embedding too: the library knows only one embedding and the projection."""
        resized = super()._resize_token_embeddings(*args, **kwargs)
        decoder = self.get_decoder()
        if not decoder.shares_embedding:
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, *args, **kwargs)
        return resized


class VanillaTransformerModel(_EncoderDecoder):
    """Section 3: encoder and decoder, without the projection to the vocabulary.

    `shared` is the embedding of section 3.4, for source, target and output. With `tie_word_embeddings` off it is the
    source's only.
    """

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.register_module("shared", None)  # Comes first: optimizers identify weights by their order.
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.encoder.share(self.encoder.embed_tokens)
        if config.tie_word_embeddings:
            self.decoder.share(self.encoder.embed_tokens)
        self.shared = self.encoder.embed_tokens
        self.post_init()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # A replica of `nn.DataParallel` still has the original's stacks, and passes them embeddings of its own.
        if name == "shared" and not getattr(self, "_is_replica", False):
            for stack in (self.encoder, self.decoder):
                if stack.shares_embedding:
                    stack.share(value)

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
        cache: Cache | None = None,
        **kwargs: object,
    ) -> Seq2SeqModelOutput:
        """Maps source and shifted target to the decoder's last states, (batch, target length, d_model).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
            decoder_attention_mask: 1 on target tokens, 0 on padding, (batch, target length so far).
            encoder_outputs: An earlier output of the encoder, instead of `input_ids`.
            past_key_values: The name of `cache` before transformers 5.24.
            inputs_embeds: Unscaled embeddings instead of `input_ids`.
            decoder_inputs_embeds: Unscaled embeddings instead of `decoder_input_ids`.
            use_cache: Whether to return the cache.
            cache: Keys and values of the target's earlier positions and of the source.
        """
        if isinstance(encoder_outputs, BaseModelOutput):
            encoded = encoder_outputs
        elif encoder_outputs is not None:
            encoded = BaseModelOutput(last_hidden_state=encoder_outputs[0])
        else:
            if input_ids is not None and inputs_embeds is None:
                input_ids, inputs_embeds = None, self.shared(input_ids)
            encoded = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        if self.decoder.shares_embedding and decoder_input_ids is not None and decoder_inputs_embeds is None:
            decoder_input_ids, decoder_inputs_embeds = None, self.shared(decoder_input_ids)
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=given_cache(cache, past_key_values),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            **in_outputs(getattr(decoded, CACHE_FIELD)),
        )


class VanillaTransformerForConditionalGeneration(EncoderDecoderHead, PaperGenerationMixin, _EncoderDecoder):
    """The whole model: section 3 with the output projection, the loss of section 5.4 and the search of section 6.1."""

    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()
        self.generation_config = paper_generation_config(config)


AUTO_MODELS: AutoModels = {
    VanillaTransformerConfig: {
        "AutoModel": VanillaTransformerModel,
        "AutoModelForSeq2SeqLM": VanillaTransformerForConditionalGeneration,
    }
}
name_hub_classes(AUTO_MODELS)
