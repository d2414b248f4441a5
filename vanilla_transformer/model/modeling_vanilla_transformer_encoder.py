"""The encoder of section 3.1 on its own: for masked language models and classifiers of texts and tokens.

Shapes in names: B batch · T positions · D d_model · C labels.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_vanilla_transformer_encoder import VanillaTransformerEncoderConfig
from .heads import LanguageModelHead, ReplaceableLoss
from .layers import Dropout
from .loss import IGNORED_LABEL, check_labels, classification_loss
from .stacks import Encoder, VanillaTransformerPreTrainedModel

_FILE = "modeling_vanilla_transformer_encoder"


class _EncoderOnly(VanillaTransformerPreTrainedModel):
    """Shared parts of the encoder-only models, with each head and without."""

    config: VanillaTransformerEncoderConfig
    hub_classes = {
        "AutoConfig": "configuration_vanilla_transformer_encoder.VanillaTransformerEncoderConfig",
        "AutoModel": f"{_FILE}.VanillaTransformerEncoderModel",
        "AutoModelForMaskedLM": f"{_FILE}.VanillaTransformerEncoderForMaskedLM",
        "AutoModelForSequenceClassification": f"{_FILE}.VanillaTransformerEncoderForSequenceClassification",
        "AutoModelForTokenClassification": f"{_FILE}.VanillaTransformerEncoderForTokenClassification",
    }


class VanillaTransformerEncoderModel(_EncoderOnly, Encoder):  # type: ignore[misc]  # Of another configuration.
    """Section 3.1: a stack of N encoder layers that gives the last states (batch, length, d_model)."""

    def __init__(self, config: VanillaTransformerEncoderConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]


class VanillaTransformerEncoderForMaskedLM(LanguageModelHead, _EncoderOnly):
    """An encoder that predicts masked tokens, by the embedding of section 3.4."""

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
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Maps token ids (batch, length) to logits (batch, length, vocabulary) and a loss.

        Args:
            input_ids: Tokens, some of them masked, (batch, length).
            attention_mask: 1 on tokens, 0 on padding, (batch, length).
            inputs_embeds: Unscaled embeddings instead of `input_ids`.
            labels: The tokens at masked positions, -100 elsewhere, (batch, length).
            num_items_in_batch: Divisor of the summed loss; the number of labels that count if None.
            skip_logits: Returns the loss of `labels` without logits, which saves most of their time and memory.
        """
        if labels is not None:
            check_labels(labels, self.config.vocab_size)
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        hidden_BTD = outputs.last_hidden_state
        logits, loss = self._logits_and_loss(hidden_BTD, labels, num_items_in_batch, 0, skip_logits, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _loss_without_logits(
        self,
        hidden_BTD: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Projects only the few masked positions: the projection is most of the work. A graph has fixed shapes."""
        if type(labels) is torch.Tensor and not torch.compiler.is_compiling():
            counts_BT = labels != IGNORED_LABEL
            hidden_BTD, labels = hidden_BTD[counts_BT][None], labels[counts_BT][None]
        return super()._loss_without_logits(hidden_BTD, labels, num_items_in_batch)


class _Classifier(ReplaceableLoss, _EncoderOnly):
    """An encoder with a linear classifier, with section 5.4's dropout and label smoothing."""

    _output: type[ModelOutput]

    def __init__(self, config: VanillaTransformerEncoderConfig) -> None:
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.model = VanillaTransformerEncoderModel(config)
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, self.num_labels)
        self.post_init()

    def _own_loss(self) -> Callable[..., torch.Tensor]:
        return self._classification_loss

    def _classification_loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        problem_type, smoothing = self._problem_type(labels), self._label_smoothing()
        return classification_loss(logits, labels, problem_type, num_items_in_batch, smoothing)

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
        **kwargs: Any,
    ) -> Any:
        """Maps token ids (batch, length) to the logits of each label and a loss.

        Args:
            input_ids: Tokens, (batch, length).
            attention_mask: 1 on tokens, 0 on padding, (batch, length).
            inputs_embeds: Unscaled embeddings instead of `input_ids`.
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
            are_whole = labels.dtype in (torch.long, torch.int) and labels.dim() == 1 and self.num_labels > 1
            if are_whole or logits.dim() == 3:
                check_labels(labels, self.num_labels)
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


VanillaTransformerEncoderModel.register_for_auto_class("AutoModel")
VanillaTransformerEncoderForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
VanillaTransformerEncoderForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
VanillaTransformerEncoderForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
