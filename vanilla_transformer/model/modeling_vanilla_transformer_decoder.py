"""The decoder of section 3.1 on its own, without attention to a source: a language model.

Shapes in names: B batch · T positions · D d_model · V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer_decoder import VanillaTransformerDecoderConfig
from .generation import CausalGenerationMixin
from .heads import LanguageModelHead
from .layers import DecoderLayer, MultiHeadAttention
from .loss import check_labels, next_token_loss
from .stacks import Stack, VanillaTransformerPreTrainedModel

_FILE = "modeling_vanilla_transformer_decoder"


class _DecoderOnly(VanillaTransformerPreTrainedModel):
    """Shared parts of the decoder-only models, with the head and without."""

    config: VanillaTransformerDecoderConfig
    hub_classes = {
        "AutoConfig": "configuration_vanilla_transformer_decoder.VanillaTransformerDecoderConfig",
        "AutoModel": f"{_FILE}.VanillaTransformerDecoderModel",
        "AutoModelForCausalLM": f"{_FILE}.VanillaTransformerDecoderForCausalLM",
    }


class VanillaTransformerDecoderModel(_DecoderOnly, Stack):
    """Section 3.1: a stack of N decoder layers without a source, in which no position sees a later one."""

    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
    }

    def __init__(self, config: VanillaTransformerDecoderConfig) -> None:
        layers = [DecoderLayer(config, i, has_cross_attention=False) for i in range(config.decoder_layers)]
        super().__init__(config, layers)

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
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Maps token ids (batch, length) to the last states, (batch, length, d_model).

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 on tokens, 0 on padding, (batch, length including cached tokens).
            position_ids: Positions from 0, (batch, length); by default they count the tokens in the mask. If they
                restart within a row, the texts packed there do not see each other, as long as there is neither a mask
                nor a cache (`use_cache=False`, or labels).
            past_key_values: Keys and values of earlier positions.
            inputs_embeds: Unscaled embeddings instead of `input_ids`.
            use_cache: Whether to return `past_key_values`.
        """
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        start = past_key_values.get_seq_length() if past_key_values is not None else 0
        x = self.embed(input_ids, inputs_embeds, attention_mask, start, position_ids)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        for layer in self.layers:
            # Positional: gradient checkpointing and output hooks read the arguments by place.
            x = layer(x, mask, None, None, past_key_values, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)


class VanillaTransformerDecoderForCausalLM(LanguageModelHead, CausalGenerationMixin, _DecoderOnly):
    """A language model: the decoder, with the embedding of section 3.4 as its output projection."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _plain_loss = staticmethod(next_token_loss)

    def __init__(self, config: VanillaTransformerDecoderConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerDecoderModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """`VanillaTransformerDecoderModel.forward`, with logits (batch, length, vocabulary) and a loss.

        Args:
            labels: The tokens themselves, (batch, length), -100 where a label does not count: each is predicted from
                those before it; the first is predicted from none and does not count. Or `shift_labels=`, where each
                label already stands at the position that predicts it.
            logits_to_keep: Number of last positions that get logits (0: all), or an index tensor of positions.
            num_items_in_batch: Divisor of the summed loss; the number of labels that count if None.
            skip_logits: Returns the loss of `labels` without logits, which saves most of their time and memory.

        The loss is the mean cross-entropy in nats per token, smoothed by `config.label_smoothing` in training mode.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        if shift_labels is not None:
            labels = shift_labels
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits, loss = self._logits_and_loss(
            outputs.last_hidden_state,
            labels,
            num_items_in_batch,
            logits_to_keep,
            skip_logits,
            shift_labels=shift_labels,
            **kwargs,
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss_without_logits(
        self,
        hidden_BTD: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if shift_labels is None:
            hidden_BTD, labels = hidden_BTD[:, :-1], labels[:, 1:]
        return super()._loss_without_logits(hidden_BTD, labels, num_items_in_batch)


VanillaTransformerDecoderModel.register_for_auto_class("AutoModel")
VanillaTransformerDecoderForCausalLM.register_for_auto_class("AutoModelForCausalLM")
# `Trainer` finds only in this table which models' labels it has to shift when it smooths them itself.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(
    VanillaTransformerDecoderConfig.model_type, VanillaTransformerDecoderForCausalLM.__name__
)
