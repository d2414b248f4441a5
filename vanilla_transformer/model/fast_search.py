"""What the models of all families have in `generate`: this package's own search wherever it does what is asked for."""

import copy
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput

from .fast_generation import (
    fast_beam_search,
    fast_greedy_search,
    inputs_of_rows,
    padding_of,
    unsupported_library,
    unsupported_reason,
)
from .packed_copies import fixed_weights, free_packed_weights
from .search import SourceLengthLimit

# Stands in finished rows until the search is over; no token has this id, so it cannot be taken for one.
_UNFILLED = -1
# What stands for the settings of this package where they are not given.
OWN_SETTINGS = {"length_penalty_type": "huggingface", "quantization": None}


def with_own_settings(settings: GenerationConfig, own: dict[str, Any] = OWN_SETTINGS) -> GenerationConfig:
    """Adds what only this package's settings have, as the library has it: without, it refuses them in a call."""
    for name, value in own.items():
        if not hasattr(settings, name):
            setattr(settings, name, value)
    return settings


class Asked:
    """What a call asks for: its arguments, then its `generation_config`, then the model's own.

    As in the library's `generate`, None in an argument is a value, and None in a configuration is nothing said.
    """

    def __init__(self, kwargs: dict[str, Any], given: GenerationConfig | None, own: GenerationConfig) -> None:
        self.kwargs, self.given, self.own = kwargs, given, own

    def said(self, name: str) -> Any:
        """What the call itself says of a setting."""
        return self.kwargs[name] if name in self.kwargs else getattr(self.given, name, None)

    def effective(self, name: str) -> Any:
        """What holds for a setting, but for the library's defaults."""
        value = self.said(name)
        return getattr(self.own, name, None) if value is None and name not in self.kwargs else value

    def penalty_type(self) -> Any:
        """Whose length penalty it is.

        Raises:
            ValueError: Nobody's.
        """
        penalty_type = self.effective("length_penalty_type")
        if penalty_type not in ("google", "huggingface"):
            raise ValueError(f"length_penalty_type must be 'google' or 'huggingface', not {penalty_type!r}.")
        return penalty_type


def _with_room(settings: GenerationConfig, stopping_criteria: StoppingCriteriaList) -> GenerationConfig:
    """Settings whose `max_length`, the tokens that the library's beam search has room for, a caller's own one fits in.

    A cache of a fixed size has no more room: there the search has to end before by itself.
    """
    lengths = [part.max_length for part in stopping_criteria if isinstance(part, MaxLengthCriteria)]
    grows = settings.cache_implementation in (None, "dynamic")
    if min(lengths, default=0) <= settings.max_length or not grows:
        return settings
    settings = copy.copy(settings)
    settings.max_length = min(lengths)
    return settings


def _refuse_combination(quantization: str | None, reason: str) -> None:
    if quantization is not None:
        raise ValueError(f"quantization={quantization!r} cannot be combined with {reason}: leave one of them out.")


class GoogleLengthPenalty(float):
    """α of the penalty ((5 + |Y|) / 6)^α that a hypothesis's log-probability is divided by (Wu et al. 2016, Eq. 14).

    The library's search divides by `length ** length_penalty`: this number gives that power Google's meaning, so
    that selecting, finishing and stopping all follow it.
    """

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5.0 + length) / 6.0) ** float(self)


class FastSearchMixin(GenerationMixin):
    """Beam search, greedy search and sampling on the fast path where that supports them, by the library elsewhere."""

    config: Any
    device: torch.device
    # By these the library's `generate` asks this class; none of them is documented.
    _hooks: ClassVar[tuple[str, ...]] = ("_beam_search", "_sample")

    def fixed_weights(self) -> AbstractContextManager[None]:
        """In a `with` of this nobody writes weights past torch: in `.data`, a NumPy array or shared memory.

        Each call of `generate` compares the weights whole with those that it has packed. Here only the first does;
        the others see what torch counts: assignments, optimizers, `load_state_dict`, `copy_` and the like.
        """
        return fixed_weights(self)

    def free_packed_weights(self) -> None:
        """Frees the copies of the weights that `generate` keeps, in the order that the processor multiplies fastest.

        There is one for each type that was asked for, made by the first call and again by the next.
        """
        free_packed_weights(self)

    def _without_hooks(self, asked: Asked, settings: dict[str, Any]) -> dict[str, Any]:
        """What a search has to be told where the library no longer asks this class for it; there it says so once.

        Raises:
            ValueError: 8-bit weights are asked for, which only this package's search has.
        """
        missing = [f"GenerationMixin.{name}" for name in self._hooks if not hasattr(GenerationMixin, name)]
        if not missing:
            return {}
        reason = unsupported_library(*missing)
        _refuse_combination(asked.effective("quantization"), reason)
        if asked.effective("length_penalty_type") == "huggingface":
            return {}
        alpha = settings.get("length_penalty", asked.effective("length_penalty"))
        return {} if alpha is None else {"length_penalty": GoogleLengthPenalty(alpha)}

    def _with_settings(
        self, settings: dict[str, Any], generation_config: GenerationConfig | None, kwargs: dict[str, Any]
    ) -> tuple[GenerationConfig | None, dict[str, Any]]:
        """The call's configuration and arguments with some settings in the place of its own."""
        if generation_config is None:
            return None, {**kwargs, **settings}
        kwargs = {name: value for name, value in kwargs.items() if name not in settings}
        generation_config = copy.deepcopy(generation_config)
        # What is this package's own is known to the object by then: the library refuses what it does not know.
        generation_config.update(**settings, allow_custom_entries=True)
        return generation_config, kwargs

    def _beam_search(  # type: ignore[override]
        self,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        generation_config = _with_room(generation_config, stopping_criteria)
        if self._can_use_fast_path(logits_processor, stopping_criteria, generation_config, input_ids, kwargs):
            known = self._record(input_ids, logits_processor, stopping_criteria, generation_config)
            if known is not None:
                return known
            found = inputs_of_rows(self, input_ids, kwargs, generation_config.num_beams)
            return fast_beam_search(self, found, logits_processor, stopping_criteria, generation_config)
        generation_config = copy.copy(generation_config)
        if getattr(generation_config, "length_penalty_type", "huggingface") == "google":
            generation_config.length_penalty = GoogleLengthPenalty(generation_config.length_penalty)
        # The library fills finished rows with `pad_token_id or eos_token_id`, and our padding is 0.
        padding = padding_of(self, generation_config)
        generation_config._pad_token_tensor = torch.tensor(_UNFILLED, device=input_ids.device)
        outputs: Any = super()._beam_search(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
        )
        if padding is not None:
            sequences = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
            sequences.masked_fill_(sequences == _UNFILLED, padding)
        return outputs

    def _sample(  # type: ignore[override]
        self,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        if self._can_use_fast_path(logits_processor, stopping_criteria, generation_config, input_ids, kwargs):
            known = self._record(input_ids, logits_processor, stopping_criteria, generation_config)
            if known is not None:
                return known
            found = inputs_of_rows(self, input_ids, kwargs, 1)
            return fast_greedy_search(self, found, logits_processor, stopping_criteria, generation_config)
        outputs: Any = super()._sample(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
        )
        # Without an end the library goes on with rows that have ended, until all have.
        padding = padding_of(self, generation_config)
        sequences = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
        for criterion in stopping_criteria:
            if isinstance(criterion, SourceLengthLimit) and padding is not None:
                sequences.masked_fill_(criterion.beyond(sequences), padding)
        return outputs

    def _record(
        self,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        settings: GenerationConfig,
    ) -> Any:
        """What a class may keep of a call that the fast path does; what is found, if that is known by then."""
        return None

    def _can_use_fast_path(
        self,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        input_ids: torch.Tensor,
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether this package's own search does all that is asked for; the library's does the rest.

        Raises:
            ValueError: 8-bit weights are asked for together with what only the library's search does.
        """
        reason = unsupported_reason(self, logits_processor, stopping_criteria, generation_config, input_ids, kwargs)
        if reason is not None:
            _refuse_combination(getattr(generation_config, "quantization", None), reason)
        return reason is None


__all__ = ["OWN_SETTINGS", "Asked", "FastSearchMixin", "GoogleLengthPenalty", "with_own_settings"]
