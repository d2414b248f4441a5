"""Section 3.4: the output projection over the vocabulary, and section 5.4: its loss, for all language models.

Shapes in names: B batch · T target · D d_model · V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from .loss import label_smoothed_loss, number_of_items

try:  # A saved model does not copy what is imported in a `try`: there the loss holds all logits.
    from vanilla_transformer.engine.cross_entropy import summed_cross_entropy
except ImportError:
    summed_cross_entropy = None  # type: ignore[assignment]


class ReplaceableLoss:
    """A model's loss, which a user may replace."""

    config: Any
    training: bool
    _modules: dict[str, Any]

    def _own_loss(self) -> Callable[..., torch.Tensor]:
        raise NotImplementedError

    @property
    def loss_function(self) -> Callable[..., torch.Tensor]:
        """Section 5.4, or the loss set in its place."""
        # The setter is not called for a module.
        custom = getattr(self, "_loss_function", None) or self._modules.get("loss_function")
        return custom or self._own_loss()

    @loss_function.setter
    def loss_function(self, value: Callable[..., torch.Tensor]) -> None:
        self._loss_function = value

    def _label_smoothing(self) -> float:
        return float(self.config.label_smoothing) if self.training else 0.0


class LanguageModelHead(ReplaceableLoss):
    """`lm_head` over a model's last states: logits, and the loss with or without them."""

    lm_head: Any
    get_input_embeddings: Callable[[], nn.Module]
    _plain_loss: Callable[..., torch.Tensor] = staticmethod(label_smoothed_loss)

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
        logits_BTV, loss = None, None
        if not skip_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits_BTV = self._project(hidden_BTD[:, kept])
        if labels is not None:
            if logits_BTV is None and self._has_plain_loss():
                loss = self._loss_without_logits(hidden_BTD, labels, num_items_in_batch, **kwargs)
            else:
                loss = self.loss_function(
                    logits=self._project(hidden_BTD) if logits_BTV is None else logits_BTV,
                    labels=labels,
                    vocab_size=self.config.vocab_size,
                    num_items_in_batch=num_items_in_batch,
                    **kwargs,
                )
        return logits_BTV, loss

    def _project(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """Section 3.4: the shared embedding as the output projection, including anything an adapter adds to it.

        LoRA wraps a module and leaves its weight unchanged until it is merged, so the module is asked for all rows.
        """
        if not self._has_adapted_embedding():
            return self.lm_head(hidden_BTD)
        every_entry = torch.arange(self.lm_head.out_features, device=hidden_BTD.device)
        return nn.functional.linear(hidden_BTD, self.get_input_embeddings()(every_entry), self.lm_head.bias)

    def _has_adapted_embedding(self) -> bool:
        shared = self.get_input_embeddings()
        return (
            not isinstance(shared, nn.Embedding)
            and isinstance(self.lm_head, nn.Linear)
            and getattr(shared, "weight", None) is self.lm_head.weight
        )

    def _own_loss(self) -> Callable[..., torch.Tensor]:
        return partial(self._plain_loss, label_smoothing=self._label_smoothing())

    def _has_plain_loss(self) -> bool:
        """Tells whether loss and projection are the paper's own, neither replaced nor adapted."""
        return (
            summed_cross_entropy is not None
            and isinstance(self.loss_function, partial)
            and self.loss_function.func is self._plain_loss
            and isinstance(self.lm_head, nn.Linear)
            and not self._has_adapted_embedding()
        )

    def _loss_without_logits(
        self,
        hidden_BTD: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        total = summed_cross_entropy(
            hidden_BTD.flatten(0, 1),
            self.lm_head.weight,
            labels.flatten(),
            self._label_smoothing(),
            self.lm_head.bias,
        )
        return total / number_of_items(labels, num_items_in_batch)
