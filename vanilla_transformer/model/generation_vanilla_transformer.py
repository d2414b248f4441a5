"""Section 6.1: beam search with Google's length penalty and a limit for each sentence."""

import copy
from typing import Any, Literal

import torch
from transformers import GenerationConfig, GenerationMixin, StoppingCriteriaList
from transformers.utils import ModelOutput

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .fast_generation_vanilla_transformer import (
    fast_beam_search,
    fast_encoder_output,
    fast_greedy_search,
    obstacle_to_fast_road,
)
from .search_vanilla_transformer import SourceLengthLimit

# Stands in finished rows until the search is over; no token has this id, so it cannot be taken for one.
_UNFILLED = -1
# What stands for the settings of this package where they are not given.
_OWN_SETTINGS = {"length_penalty_type": "huggingface", "max_length_beyond_source": None, "quantization": None}
_PAPER_EXPONENT = 0.6
# The length that the library writes into a generation config in which there is none.
_LIBRARY_MAX_LENGTH = 20


def paper_generation_config(
    config: VanillaTransformerConfig,
    num_beams: int = 4,
    length_penalty: float = _PAPER_EXPONENT,
    length_penalty_type: Literal["google", "huggingface"] = "google",
) -> GenerationConfig:
    """Section 6.1: beam 4, α = 0.6, at most 50 tokens more than the source, stopping early where that is exact.

    The paper chose beam and α on the development set, and so may a recipe; one beam is greedy search, with no α.
    Three settings are this package's own: `length_penalty_type` ("google", or "huggingface" for the library's
    length^penalty), `max_length_beyond_source` (None for no limit but the library's) and `quantization` (None, or
    "int8" to decode with weights of 8 bits on a CPU).
    """
    of_beams = {"length_penalty": length_penalty, "early_stopping": "never"} if num_beams > 1 else {}
    return GenerationConfig(
        num_beams=num_beams,
        **of_beams,
        length_penalty_type=length_penalty_type,
        max_length_beyond_source=50,
        quantization=None,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def _with_own_settings(settings: GenerationConfig) -> GenerationConfig:
    """Adds what only this package's settings have, as the library has it: without, it refuses them in a call."""
    for name, value in _OWN_SETTINGS.items():
        if not hasattr(settings, name):
            setattr(settings, name, value)
    return settings


class GoogleLengthPenalty(float):
    """α of the penalty ((5 + |Y|) / 6)^α that a hypothesis's log-probability is divided by (Wu et al. 2016, Eq. 14).

    The library's search divides by `length ** length_penalty`: this number gives that power Google's meaning, so
    that selecting, finishing and stopping all follow it.
    """

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5.0 + length) / 6.0) ** float(self)


class PaperGenerationMixin(GenerationMixin):
    """`generate` as in section 6.1 where nothing else is asked for; all else is the library's."""

    config: Any

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        """The library's `generate`; see its documentation for all arguments.

        With no argument but the inputs: beam 4, Google's length penalty with α = 0.6, and for each sentence at most
        its own source length (`</s>` counts on both sides) + 50 new tokens. What a call asks for takes the place of
        that: `max_new_tokens` or `max_length` the place of the limit, `num_beams` that of the beam. A call that says
        `do_sample` and no `num_beams` has none, as the library documents it: True samples, False is greedy search.
        """
        _with_own_settings(self.generation_config)
        settings = self._search_asked_for(generation_config, kwargs)
        beyond = self._beyond_source(generation_config, kwargs)
        if beyond is not None:
            limits = self._source_lengths(inputs, kwargs) + beyond
            prompt_length = self._prompt_length(kwargs.get("decoder_input_ids"))
            if self.config.positional_encoding == "learned":
                # The last new token is never read, so it needs no position.
                limits = limits.clamp(max=self.config.max_position_embeddings - prompt_length + 1)
            criteria = kwargs.pop("stopping_criteria", None) or []
            kwargs["stopping_criteria"] = StoppingCriteriaList([*criteria, SourceLengthLimit(limits, prompt_length)])
            settings["max_length"] = int(limits.max()) + prompt_length
        if generation_config is None:
            kwargs.update(settings)
        else:
            generation_config = _with_own_settings(copy.deepcopy(generation_config))
            generation_config.update(**settings)
        return super().generate(inputs, generation_config, *args, **kwargs)  # type: ignore[misc]

    def _search_asked_for(self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What a call without a beam means for settings of one, so that the library warns of none.

        And the reverse: a beam asked of a model of greedy search, whose settings can have no penalty, has the paper's.
        """

        def asked(name: str) -> Any:
            return kwargs.get(name, getattr(generation_config, name, None))

        own = self.generation_config
        beams = 1 if asked("num_beams") is None and asked("do_sample") is not None else asked("num_beams")
        type_ = kwargs.get("length_penalty_type", getattr(generation_config or own, "length_penalty_type", None))
        meant: dict[str, Any] = {}
        if beams == 1:
            meant = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
        elif beams and own.num_beams == 1 and type_ == "google":
            of_beams = {"length_penalty": _PAPER_EXPONENT, "early_stopping": "never"}
            meant = {name: value for name, value in of_beams.items() if getattr(own, name, None) is None}
        return {name: value for name, value in meant.items() if asked(name) is None}

    def _beyond_source(self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> int | None:
        """The tokens allowed beyond the source's length, or None where another limit was asked for.

        A `max_length` of `self.generation_config` is one, unless it is the library's own 20: `Seq2SeqTrainer` writes
        that there by itself.
        """
        for name in ("max_new_tokens", "max_length"):
            if kwargs.get(name) is not None or getattr(generation_config, name, None) is not None:
                return None
        if "max_length_beyond_source" in kwargs:
            return kwargs["max_length_beyond_source"]
        given = getattr(generation_config, "max_length_beyond_source", None)
        if given is not None:
            return given
        own = self.generation_config
        if own.max_new_tokens is not None or own.max_length not in (None, _LIBRARY_MAX_LENGTH):
            return None
        return getattr(own, "max_length_beyond_source", None)

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        attention_mask = kwargs.get("attention_mask")
        if attention_mask is not None:
            return attention_mask.sum(-1)
        input_ids: torch.Tensor | None = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is not None:
            return input_ids.ne(self.config.pad_token_id).sum(-1)
        states = kwargs.get("inputs_embeds")
        if states is None:
            encoder_outputs = kwargs.get("encoder_outputs")
            if encoder_outputs is None:
                return torch.ones(1, dtype=torch.long)  # The library's source is then one `<s>`.
            states = encoder_outputs[0]
        return torch.full((states.shape[0],), states.shape[1])

    def _prompt_length(self, decoder_input_ids: torch.Tensor | None) -> int:
        """Tokens in the decoder before the first new one; the library puts a missing start token there itself."""
        if decoder_input_ids is None:
            return 1
        lacks_start = bool(decoder_input_ids[:, 0].ne(self.config.decoder_start_token_id).all())
        return decoder_input_ids.shape[1] + lacks_start

    def _maybe_prepare_encoder_kwargs_for_generation(
        self,
        inputs_tensor: torch.Tensor,
        model_kwargs: dict[str, Any],
        model_input_name: str | None,
        generation_config: GenerationConfig,
    ) -> dict[str, Any]:
        """Asks the encoder once, by the fast road where it can go there."""
        if model_kwargs.get("encoder_outputs") is None:
            name = model_input_name or "input_ids"
            output = fast_encoder_output(self, inputs_tensor, name, generation_config, model_kwargs)
            if output is not None:
                model_kwargs["encoder_outputs"] = output
        arguments = inputs_tensor, model_kwargs, model_input_name, generation_config
        return super()._maybe_prepare_encoder_kwargs_for_generation(*arguments)  # type: ignore[misc]

    def _beam_search(  # type: ignore[override]
        self,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        penalty_type = getattr(generation_config, "length_penalty_type", "huggingface")
        if penalty_type not in ("google", "huggingface"):
            raise ValueError(f"length_penalty_type must be 'google' or 'huggingface', not {penalty_type!r}.")
        if self._takes_fast_road(logits_processor, stopping_criteria, generation_config, kwargs):
            return fast_beam_search(self, input_ids, logits_processor, stopping_criteria, generation_config, kwargs)
        generation_config = copy.copy(generation_config)
        if penalty_type == "google":
            generation_config.length_penalty = GoogleLengthPenalty(generation_config.length_penalty)
        # The library fills finished rows with `pad_token_id or eos_token_id`, and our padding is 0.
        generation_config._pad_token_tensor = torch.tensor(_UNFILLED, device=input_ids.device)
        outputs: Any = super()._beam_search(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
        )
        sequences = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
        sequences.masked_fill_(sequences == _UNFILLED, self.config.pad_token_id)
        return outputs

    def _sample(  # type: ignore[override]
        self,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        if self._takes_fast_road(logits_processor, stopping_criteria, generation_config, kwargs):
            return fast_greedy_search(self, input_ids, logits_processor, stopping_criteria, generation_config, kwargs)
        return super()._sample(  # type: ignore[misc]
            input_ids, logits_processor, stopping_criteria, generation_config, **kwargs
        )

    def _takes_fast_road(
        self,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        kwargs: dict[str, Any],
    ) -> bool:
        """Whether this package's own search does all that is asked for; the library's does the rest.

        Raises:
            ValueError: Weights of 8 bits are asked for together with what only the library's search does.
        """
        obstacle = obstacle_to_fast_road(self, logits_processor, stopping_criteria, generation_config, kwargs)
        quantization = getattr(generation_config, "quantization", None)
        if obstacle is not None and quantization is not None:
            raise ValueError(
                f"quantization={quantization!r} is not to be had together with {obstacle}: leave one of them out."
            )
        return obstacle is None


__all__ = ["GoogleLengthPenalty", "PaperGenerationMixin", "SourceLengthLimit", "paper_generation_config"]
