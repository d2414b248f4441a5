"""The paper's encoder on its own: a model of text, with heads that fill in masked tokens and give labels.

Shapes in names: B batch · T positions · D d_model.
"""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_vanilla_transformer import VanillaTransformerEncoderConfig
from .modeling_vanilla_transformer import (
    IGNORED_LABEL,
    Dropout,
    Encoder,
    Head,
    LanguageModelHead,
    VanillaTransformerPreTrainedModel,
    label_smoothed_loss,
    number_of_items,
)
from .pipeline_vanilla_transformer import AutoModels, name_hub_classes


class VanillaTransformerEncoderModel(Encoder):
    """Section 3.1: a stack of N encoder layers that gives the last states (batch, length, d_model)."""

    config: VanillaTransformerEncoderConfig  # type: ignore[assignment]


class VanillaTransformerEncoderForMaskedLM(LanguageModelHead, VanillaTransformerPreTrainedModel):
    """An encoder that predicts masked tokens, by the embedding of section 3.4."""

    config: VanillaTransformerEncoderConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: VanillaTransformerEncoderConfig) -> None:
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.output_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        skip_logits: bool = False,
        label_positions: torch.Tensor | None = None,
        **kwargs: object,
    ) -> MaskedLMOutput:
        """`Encoder.forward`, with logits (batch, length, vocabulary) and a loss.

        Args:
            labels: The tokens at masked positions, -100 elsewhere, (batch, length).
            num_items_in_batch: Divisor of the summed loss; the number of labels that count if None.
            skip_logits: Returns the loss of `labels` without logits, which saves most of their time and memory.
            label_positions: Where labels that count are in `labels.flatten()`, so that they need not be looked for.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        hidden_BTD = outputs.last_hidden_state
        if skip_logits and type(labels) is torch.Tensor and not torch.compiler.is_compiling():
            # Only the few masked positions are projected, which is most of the work. A graph has fixed shapes.
            if label_positions is None:
                label_positions = (labels != IGNORED_LABEL).flatten().nonzero().squeeze(1)
            hidden_BTD = hidden_BTD.flatten(0, 1).index_select(0, label_positions)[None]
            labels = labels.flatten().index_select(0, label_positions)[None]
        logits, loss = self._logits_and_loss(hidden_BTD, labels, num_items_in_batch, 0, skip_logits, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class _Classifier(Head, VanillaTransformerPreTrainedModel):
    """An encoder with a linear classifier, with section 5.4's dropout and label smoothing."""

    config: VanillaTransformerEncoderConfig
    _output: type[ModelOutput]

    def __init__(self, config: VanillaTransformerEncoderConfig) -> None:
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.model = VanillaTransformerEncoderModel(config)
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, self.num_labels)
        self.post_init()

    def own_loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Mean loss per label, by `problem_type`; zero without labels, for a process that has no row in a step."""
        problem_type, labels = self._problem_type(labels), labels.to(logits.device)
        if not labels.numel():
            return 0 * logits.sum()
        if problem_type == "single_label_classification":
            return label_smoothed_loss(logits, labels, num_items_in_batch, self._label_smoothing())
        if labels.numel() != logits.numel():
            raise ValueError(
                f"{problem_type} needs labels of the logits' shape {tuple(logits.shape)}, not {tuple(labels.shape)}."
            )
        is_regression, labels = problem_type == "regression", labels.view_as(logits).float()
        loss = nn.functional.mse_loss if is_regression else nn.functional.binary_cross_entropy_with_logits
        count = labels.numel() if num_items_in_batch is None else number_of_items(labels, num_items_in_batch)
        return loss(logits.float(), labels, reduction="sum") / count

    def _problem_type(self, labels: torch.Tensor) -> str:
        return "single_label_classification"

    def _classified(self, hidden_BTD: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Returns the states that are classified."""
        return hidden_BTD

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: object,
    ) -> ModelOutput:
        """`Encoder.forward`, with the logits of each label and a loss.

        Args:
            labels: Classes of the texts, (batch,), or of the tokens, (batch, length), -100 where a label does not
                count; for texts also, (batch, labels), 0 and 1 for several labels each, or numbers.
                `config.problem_type` says which; if it is None, the first labels do: one number per text is
                regression, whole numbers are classes, anything else is several labels.
            num_items_in_batch: Divisor of the summed loss; the number of labels that count if None.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        classified = self._classified(outputs.last_hidden_state, attention_mask)
        logits, loss = self.classifier(self.dropout(classified)), None
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                pooled_logits=logits,
                config=self.config,
                num_items_in_batch=num_items_in_batch,
            )
        return self._output(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class VanillaTransformerEncoderForSequenceClassification(_Classifier):
    """An encoder that gives a whole text a label, several labels, or numbers, as `config.problem_type` says."""

    _output = SequenceClassifierOutput

    def _classified(self, hidden_BTD: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Returns one state per text, (batch, d_model)."""
        if self.config.classifier_pooling == "first":
            if attention_mask is None:
                return hidden_BTD[:, 0]
            first_B = attention_mask.long().argmax(-1)
            return hidden_BTD[torch.arange(len(hidden_BTD), device=hidden_BTD.device), first_B]
        if attention_mask is None:
            return hidden_BTD.mean(1)
        weights_BT1 = attention_mask.to(hidden_BTD.dtype)[..., None]
        return (hidden_BTD * weights_BT1).sum(1) / weights_BT1.sum(1).clamp(min=1)

    def _problem_type(self, labels: torch.Tensor) -> str:
        """Returns the kind of labels: as configured, or guessed from the first labels, as in the library, and kept."""
        if self.config.problem_type is None:
            if self.num_labels == 1:
                self.config.problem_type = "regression"
            elif labels.dtype in (torch.long, torch.int):
                self.config.problem_type = "single_label_classification"
            else:
                self.config.problem_type = "multi_label_classification"
        return self.config.problem_type


class VanillaTransformerEncoderForTokenClassification(_Classifier):
    """An encoder that gives each token a label."""

    _output = TokenClassifierOutput


AUTO_MODELS: AutoModels = {
    VanillaTransformerEncoderConfig: {
        "AutoModel": VanillaTransformerEncoderModel,
        "AutoModelForMaskedLM": VanillaTransformerEncoderForMaskedLM,
        "AutoModelForSequenceClassification": VanillaTransformerEncoderForSequenceClassification,
        "AutoModelForTokenClassification": VanillaTransformerEncoderForTokenClassification,
    }
}
name_hub_classes(AUTO_MODELS)
