"""The paper's decoder on its own: a language model."""

from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder

from .configuration_vanilla_transformer import VanillaTransformerDecoderConfig
from .modeling_vanilla_transformer import (
    Decoder,
    DecoderLayer,
    LanguageModelHead,
    MultiHeadAttention,
    VanillaTransformerPreTrainedModel,
    given_cache,
)
from .pipeline_vanilla_transformer import AutoModels, name_hub_classes


class VanillaTransformerDecoderModel(Decoder):
    """Section 3.1: a stack of N decoder layers without a source, in which no position sees a later one."""

    has_source = False
    config: VanillaTransformerDecoderConfig  # type: ignore[assignment]
    _can_record_outputs = {
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attention"),
    }


class VanillaTransformerDecoderForCausalLM(LanguageModelHead, GenerationMixin, VanillaTransformerPreTrainedModel):
    """A language model: the decoder, with the embedding of section 3.4 as its output projection."""

    config: VanillaTransformerDecoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

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
        cache: Cache | None = None,
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
            use_cache = False
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=given_cache(cache, past_key_values),
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
        others = {name: part for name, part in outputs.items() if name != "last_hidden_state"}
        return CausalLMOutputWithPast(loss=loss, logits=logits, **others)

    def _aligned(
        self, outputs: torch.Tensor, labels: torch.Tensor, shift_labels: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each position predicts the next one's label; `shift_labels` stand at the positions that predict them."""
        return (outputs[:, :-1], labels[:, 1:]) if shift_labels is None else (outputs, shift_labels)


AUTO_MODELS: AutoModels = {
    VanillaTransformerDecoderConfig: {
        "AutoModel": VanillaTransformerDecoderModel,
        "AutoModelForCausalLM": VanillaTransformerDecoderForCausalLM,
    }
}
name_hub_classes(AUTO_MODELS)
# `Trainer` finds only in this table which models' labels it has to shift when it smooths them itself.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(
    VanillaTransformerDecoderConfig.model_type, VanillaTransformerDecoderForCausalLM.__name__
)
