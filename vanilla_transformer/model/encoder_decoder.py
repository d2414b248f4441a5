"""The head of every encoder-decoder.

Shapes in names: B batch · T target · V vocabulary.
"""

from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from .heads import LanguageModelHead
from .loss import IGNORED_LABEL, check_labels


class EncoderDecoderHead(LanguageModelHead):
    """The head of an encoder-decoder: the decoder reads the target shifted right."""

    model: Any

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Section 3.1: shifts the target right by one place; ignored labels become padding."""
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
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs: Any,
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
        logits_BTV, loss = self._logits_and_loss(
            outputs.last_hidden_state,
            labels,
            num_items_in_batch,
            logits_to_keep,
            skip_logits,
            **kwargs,
        )
        others = {name: part for name, part in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits_BTV, **others)
