"""The head of every encoder-decoder, and targets written from right to left.

A right-to-left model learns and decodes its targets reversed; everything else sees them in reading order.

Shapes in names: B batch · T target · V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput, can_return_tuple

from .generation import PaperGenerationMixin
from .heads import LanguageModelHead
from .loss import IGNORED_LABEL, check_labels

DIRECTIONS = ("left-to-right", "right-to-left")
# Settings that `generate` would apply in writing order, while the caller means reading order.
_OF_READING_ORDER = {
    "streamer": "hands out tokens as they are written, the last first",
    "prefix_allowed_tokens_fn": "is asked of what a target begins with",
    "assistant_model": "would have to write from the right too",
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "sequence_bias"), "names tokens in the order of reading"),
    "stop_strings": "ends what is read from the left",
    "forced_bos_token_id": "is the first token to be read, and written last",
}


def is_right_to_left(config: PreTrainedConfig) -> bool:
    """Tells whether the model writes its targets from their end."""
    return getattr(config, "target_direction", DIRECTIONS[0]) == DIRECTIONS[1]


def turned(ids_BT: torch.Tensor, config: Any) -> torch.Tensor:
    """Returns indices (batch, target length) that reverse the tokens before each `</s>`; applied twice, they cancel.

    Args:
        ids_BT: Targets without the decoder start token, followed by padding or -100.
        config: Gives the ids of `</s>` and padding.
    """
    places_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends_BT = torch.isin(ids_BT, torch.tensor(ends, device=ids_BT.device))
    text_BT = (ids_BT != IGNORED_LABEL) & (ids_BT != config.pad_token_id)
    # A truncated target has no `</s>`.
    to_last_B1 = ((places_T + 1) * text_BT).amax(1, keepdim=True)
    length_B1 = torch.where(ends_BT.any(1, keepdim=True), ends_BT.int().argmax(1, keepdim=True), to_last_B1)
    return torch.where(places_T < length_B1, length_B1 - 1 - places_T, places_T)


def _as_read(output: Any, config: Any) -> Any:
    """Returns the output of `generate` with its sequences in reading order."""
    if isinstance(output, torch.Tensor):
        return torch.cat((output[:, :1], output[:, 1:].gather(1, turned(output[:, 1:], config))), 1)
    output["sequences"] = _as_read(output["sequences"], config)
    return output


def _check_request(asked: Mapping[str, Any], *settings: Any) -> None:
    """Raises ValueError for a setting that has no meaning where the target is written from its end."""
    for name, why in _OF_READING_ORDER.items():
        if any(value is not None for value in (asked.get(name), *(getattr(one, name, None) for one in settings))):
            raise ValueError(f"This model writes from right to left, and {name} {why}: leave it out.")
    prefix = asked.get("decoder_input_ids")
    if asked.get("decoder_inputs_embeds") is not None or (prefix is not None and prefix.shape[1] > 1):
        raise ValueError("This model writes from right to left, so that no beginning of a target can be given to it.")


class DirectedGenerationMixin(PaperGenerationMixin):
    """`generate` with the defaults of section 6.1, for targets of either direction.

    A right-to-left model returns `sequences` in reading order; the per-step parts of its output are in writing order.
    """

    def generate(  # type: ignore[override]  # noqa: D102 (help shows the documentation of the method that it wraps)
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        if not is_right_to_left(self.config):
            return super().generate(inputs, generation_config, *args, **kwargs)
        _check_request(kwargs, generation_config, self.generation_config)
        return _as_read(super().generate(inputs, generation_config, *args, **kwargs), self.config)


class EncoderDecoderHead(LanguageModelHead):
    """The head of an encoder-decoder: a target is shifted right, and turned where it is written from its end."""

    model: Any

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
        past_key_values: Any = None,
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
        """The model's `forward`, with logits (batch, target length, vocabulary) and a loss.

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
        turned_BT, soft_targets = None, _soft_targets(labels, soft_target_ids, soft_target_weights)
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
            use_cache = False
            has_inputs = decoder_input_ids is not None or decoder_inputs_embeds is not None
            if is_right_to_left(self.config):
                if has_inputs or not isinstance(logits_to_keep, int) or logits_to_keep != 0:
                    raise ValueError(
                        "This model writes from right to left and turns labels by itself: give it labels alone, "
                        "without decoder_input_ids, decoder_inputs_embeds or logits_to_keep."
                    )
                turned_BT = turned(labels, self.config)
                labels = labels.gather(1, turned_BT)
                soft_targets = {name: _in_order(part, turned_BT) for name, part in soft_targets.items()}
            if not has_inputs:
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
            outputs.last_hidden_state,
            labels,
            num_items_in_batch,
            logits_to_keep,
            skip_logits,
            **soft_targets,
            **kwargs,
        )
        if turned_BT is not None and logits_BTV is not None:
            logits_BTV = _in_order(logits_BTV, turned_BT)
        others = {name: part for name, part in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits_BTV, **others)


def _in_order(part_BTV: torch.Tensor, order_BT: torch.Tensor) -> torch.Tensor:
    return part_BTV.gather(1, order_BT[..., None].expand_as(part_BTV))


def _soft_targets(
    labels: torch.Tensor | None, ids: torch.Tensor | None, weights: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Returns the soft targets by their names in `forward`; raises ValueError unless they match the labels."""
    if ids is None and weights is None:
        return {}
    if labels is None or ids is None or weights is None or not labels.shape == ids.shape[:2] == weights.shape[:2]:
        raise ValueError(
            "soft_target_ids and soft_target_weights are for labels, and of the shape (batch, target length, types): "
            "give all three."
        )
    return {"soft_target_ids": ids, "soft_target_weights": weights}
