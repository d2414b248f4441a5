"""Section 3: the paper's encoder and decoder together, and the head over the vocabulary.

Shapes in names: B batch · S source · T target · D d_model · V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .encoder_decoder import EncoderDecoderHead
from .generation import PaperGenerationMixin, paper_generation_config
from .pipeline_vanilla_transformer import custom_pipelines
from .stacks import Decoder, Encoder, Stack, VanillaTransformerPreTrainedModel


class _EncoderDecoder(VanillaTransformerPreTrainedModel):
    """Shared parts of the encoder-decoder, with its head and without."""

    config: VanillaTransformerConfig
    hub_classes = {
        "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    }
    hub_pipelines = custom_pipelines()

    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resizes a separate target embedding too: the library knows only one embedding and the projection."""
        resized = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = self.get_decoder()
        if not decoder.shares_embedding:
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
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

    def get_input_embeddings(self) -> nn.Module:
        """Returns the embedding of the source, which is the target's too unless `tie_word_embeddings` is off."""
        return self.shared

    def set_input_embeddings(self, value: Any) -> None:
        """Replaces the shared embedding."""
        self.shared = value

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # In a replica of `nn.DataParallel` the stacks still belong to the original.
        if name == "shared" and not getattr(self, "_is_replica", False):
            for stack in (self.encoder, self.decoder):
                if stack.shares_embedding:
                    stack.share(value)

    def _embedded(
        self, stack: Stack, ids: torch.Tensor | None, embeddings: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns ids and embeddings for a stack, which in a replica knows only the original's embedding."""
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
        """Maps source and shifted target to the decoder's last states, (batch, target length, d_model).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
            decoder_attention_mask: 1 on target tokens, 0 on padding, (batch, target length so far).
            encoder_outputs: An earlier output of the encoder, instead of `input_ids`.
            past_key_values: Keys and values of the target's earlier positions and of the source.
            inputs_embeds: Unscaled embeddings instead of `input_ids`.
            decoder_inputs_embeds: Unscaled embeddings instead of `decoder_input_ids`.
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


class VanillaTransformerForConditionalGeneration(EncoderDecoderHead, PaperGenerationMixin, _EncoderDecoder):
    """The whole model: section 3 with the output projection, the loss of section 5.4 and the search of section 6.1."""

    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()
        self.generation_config = paper_generation_config(config)


VanillaTransformerModel.register_for_auto_class("AutoModel")
VanillaTransformerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
