"""Section 3.1: stacks of layers over embedded tokens, and the initial weights of every model.

Shapes in names: B batch · T positions · D d_model.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import VanillaTransformerBaseConfig, VanillaTransformerConfig
from .layers import DecoderLayer, Dropout, EncoderLayer, MultiHeadAttention, PositionalEncoding
from .loss import check_mask
from .saving import SavedWithItsCode


class VanillaTransformerPreTrainedModel(SavedWithItsCode, PreTrainedModel):
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
    _skip_keys_device_placement = ["past_key_values"]

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

    def __init__(self, config: VanillaTransformerBaseConfig, layers: Sequence[nn.Module]) -> None:
        super().__init__(config)
        self._modules["embed_tokens"] = nn.Embedding(config.vocab_size, config.d_model)
        self._shared: tuple[nn.Module, ...] = ()  # A tuple keeps it from being registered.
        self.positional_encoding = PositionalEncoding(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()
        # The library would also split the embedding, which is the output projection, or shared by source and target.
        self._tp_plan = {} if config.is_encoder_decoder else dict(config.base_model_tp_plan or {})

    @property
    def shares_embedding(self) -> bool:
        """Tells whether the stack uses the embedding of its model instead of its own."""
        return "embed_tokens" not in self._modules

    @property
    def embed_tokens(self) -> nn.Module:
        """The stack's own embedding, or its model's `shared`, which only the model registers.

        If a module is registered in several places, tools that adapt models replace it in only one of them.
        """
        own = self._modules.get("embed_tokens")
        return self._shared[0] if own is None else own

    def share(self, embedding: nn.Module) -> None:
        """Makes the stack use its model's embedding instead of its own."""
        self._modules.pop("embed_tokens", None)
        self._shared = (embedding,)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Saves the target's embedding too: an adapter may untie a model built tied, and loading then asks for it."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.shares_embedding and isinstance(self, Decoder) and not self.config.tie_word_embeddings:
            weight: Any = self.embed_tokens.weight
            destination[f"{prefix}embed_tokens.weight"] = weight.detach().clone()

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does, with the embedding that the stack shares."""
        if self.shares_embedding:
            whole = {**self.state_dict(), "embed_tokens.weight": self.embed_tokens.weight}
            kwargs.setdefault("state_dict", whole)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Stack":
        """Moves a shared embedding too: an encoder kept without its model takes it to another device or type."""
        for embedding in self._shared:
            embedding._apply(fn, recurse)
        return super()._apply(fn, recurse)

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
            table = self.positional_encoding(attention_mask.shape[1], device=device)
            positions_BT = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
            encodings = nn.functional.embedding(positions_BT, table)
        return self.dropout(embeddings_BTD + encodings.to(embeddings_BTD.dtype))


def refuse_positions(kwargs: dict[str, Any]) -> None:
    """Refuses a caller's positions, which would have no effect.

    Raises:
        ValueError: The caller gives positions.
    """
    for name in ("position_ids", "decoder_position_ids"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{name} cannot be given: a sentence's positions count its tokens in the attention mask, from 0. "
                "Sentences that are packed into one row have to be rows of their own."
            )


class Encoder(Stack):
    """Section 3.1: a stack of N encoder layers over the embedded source."""

    config: VanillaTransformerConfig

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
        """Maps token ids (batch, source length) to states (batch, source length, d_model)."""
        refuse_positions(kwargs)
        x = self.embed(input_ids, inputs_embeds, attention_mask)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=x)


class Decoder(Stack):
    """Section 3.1: a stack of N decoder layers in which no position sees a later one."""

    config: VanillaTransformerConfig

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
        """Maps token ids (batch, target length) to states (batch, target length, d_model)."""
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
        if encoder_hidden_states is not None:
            check_mask(encoder_attention_mask, encoder_hidden_states.shape[1])
        source_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        for layer in self.layers:
            # Positional: gradient checkpointing and output hooks read the arguments by place.
            x = layer(x, causal_mask, encoder_hidden_states, source_mask, past_key_values, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=x, past_key_values=past_key_values)
