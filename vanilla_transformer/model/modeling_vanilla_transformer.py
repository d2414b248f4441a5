"""Section 3: the paper's encoder and decoder together, and the head over the vocabulary.

Shapes in names: B batch · S source · T target · D d_model · V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import can_return_tuple

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .direction import is_right_to_left, turned
from .generation import PaperGenerationMixin, paper_generation_config
from .heads import LanguageModelHead, soft_targets_of
from .loss import IGNORED_LABEL, check_labels
from .pipeline_vanilla_transformer import custom_pipelines
from .saving import rename_old_weights
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

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        rename_old_weights(state_dict)
        if self.decoder.shares_embedding:
            state_dict.pop(f"{prefix}decoder.embed_tokens.weight", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

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


class VanillaTransformerForConditionalGeneration(LanguageModelHead, PaperGenerationMixin, _EncoderDecoder):
    """The whole model: section 3 with the output projection, the loss of section 5.4 and the search of section 6.1."""

    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}

    def __init__(self, config: VanillaTransformerConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()
        self.generation_config = paper_generation_config(config)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Section 3.1: shifts the target right by one place; ignored labels become padding."""
        if is_right_to_left(self.config):
            raise ValueError(
                "This model writes from right to left and turns labels by itself: give it labels alone, and no model= "
                "to a DataCollatorForSeq2Seq or label_smoothing_factor to a Trainer."
            )
        return self._shifted_right(labels)

    def _shifted_right(self, labels: torch.Tensor) -> torch.Tensor:
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
        # A Trainer takes every argument with `label` in its name for labels, and evaluates only when all are given.
        soft_target_ids: torch.Tensor | None = None,
        soft_target_weights: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """`VanillaTransformerModel.forward`, with logits (batch, target length, vocabulary) and a loss.

        Args:
            labels: Target tokens, (batch, target length), -100 where a label does not count. If given, the decoder's
                input is made from them and the loss is returned.
            logits_to_keep: Number of last positions that get logits (0: all), or an index tensor of positions.
            num_items_in_batch: Divisor of the summed loss; the number of labels that count if None. A step of several
                batches gives the number of labels in all of them.
            skip_logits: Returns the loss of `labels` without logits: they can take half the time and memory of a step.
            soft_target_ids: Tokens that share each label's place, (batch, target length, tokens), such as those that a
                teacher considers likely (word-level distillation).
            soft_target_weights: The share of each; the remainder to 1 goes to the label, smoothed.

        A right-to-left model reverses the labels by itself, and returns their logits in reading order.

        The loss is the mean cross-entropy in nats per target token; in training mode the targets are smoothed by
        `config.label_smoothing` over the whole vocabulary (section 5.4), in evaluation mode they are not. A `Trainer`
        with a `label_smoothing_factor` requests no loss and smooths by itself: never both. Set another loss as
        `model.loss_function = f`, which is called as in the library's models: `f(logits=, labels=, vocab_size=,
        num_items_in_batch=)`.
        """
        turned_BT, soft_targets = None, soft_targets_of(labels, soft_target_ids, soft_target_weights)
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False
            if is_right_to_left(self.config):
                if (
                    decoder_input_ids is not None
                    or decoder_inputs_embeds is not None
                    or not _keeps_all(logits_to_keep)
                ):
                    raise ValueError(
                        "This model writes from right to left and turns labels by itself: give it labels alone, "
                        "without decoder_input_ids, decoder_inputs_embeds or logits_to_keep."
                    )
                turned_BT = turned(labels, self.config)
                labels = labels.gather(1, turned_BT)
                if soft_targets is not None:
                    ids, weights = (part.gather(1, turned_BT[..., None].expand_as(part)) for part in soft_targets)
                    soft_targets = ids, weights
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self._shifted_right(labels)
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
        logits_BTV, loss = self._logits_and_loss(
            outputs.last_hidden_state, labels, num_items_in_batch, logits_to_keep, skip_logits, soft_targets, **kwargs
        )
        if turned_BT is not None and logits_BTV is not None:
            logits_BTV = logits_BTV.gather(1, turned_BT[..., None].expand_as(logits_BTV))
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


def _keeps_all(logits_to_keep: int | torch.Tensor) -> bool:
    return isinstance(logits_to_keep, int) and logits_to_keep == 0


VanillaTransformerModel.register_for_auto_class("AutoModel")
VanillaTransformerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
