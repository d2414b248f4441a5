"""Section 6.1: beam search with Google's length penalty and a limit for each sentence."""

import copy
import os
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedConfig, StoppingCriteriaList
from transformers.utils import ModelOutput

from .call_plans import MOST_PLANS, PlannedCall, Prepared, known_plan, plain_call, record, recorded
from .direction import as_read, check_request, is_right_to_left
from .fast_generation import fast_encoder_output, unsupported_model
from .fast_search import OWN_SETTINGS, Asked, FastSearchMixin, GoogleLengthPenalty, with_own_settings
from .planned_search import planned_search, sentence_search
from .search import SourceLengthLimit

# What stands for the settings of this package where they are not given.
_OWN_SETTINGS = {**OWN_SETTINGS, "max_length_beyond_source": None}
_PAPER_EXPONENT = 0.6
# A beam's settings: the paper's, and as the library has them where there is no beam.
_PAPER_BEAM = {"length_penalty": _PAPER_EXPONENT, "early_stopping": "never"}
_NO_BEAM = {"length_penalty": 1.0, "early_stopping": False}
# The length that the library writes into a generation config in which there is none.
_LIBRARY_MAX_LENGTH = 20


def paper_generation_config(
    config: PreTrainedConfig,
    num_beams: int = 4,
    length_penalty: float = _PAPER_EXPONENT,
    length_penalty_type: Literal["google", "huggingface"] = "google",
    max_length_beyond_source: int = 50,
) -> GenerationConfig:
    """Section 6.1: beam 4, α = 0.6, at most 50 tokens more than the source, stopping early where that is exact.

    The paper chose beam and α on the development set, and so may a recipe; one beam is greedy search, with no α.
    Three settings are this package's own: `length_penalty_type` ("google", or "huggingface" for the library's
    length^penalty), `max_length_beyond_source` (None for no limit but the library's) and `quantization` (None, or
    "int8" to decode with 8-bit weights on a CPU).
    """
    of_beams = {"length_penalty": length_penalty, "early_stopping": "never"} if num_beams > 1 else {}
    return GenerationConfig(
        num_beams=num_beams,
        **of_beams,
        length_penalty_type=length_penalty_type,
        max_length_beyond_source=max_length_beyond_source,
        quantization=None,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class _Asked(Asked):
    """What a call asks for, in the terms of section 6.1."""

    def search(self) -> dict[str, Any]:
        """What the call means for the beam and its penalty without saying it.

        Without a beam no setting of one, of which the library would warn; and where Google's penalty has no exponent,
        as in a model of greedy search that is asked for a beam, the paper's.
        """
        penalty_type = self.penalty_type()
        meant: dict[str, Any] = {}
        beams = self.said("num_beams")
        if beams is None:
            beams = meant["num_beams"] = 1 if self.said("do_sample") else self.own.num_beams or 1
        if beams == 1:
            return meant | {name: value for name, value in _NO_BEAM.items() if self.said(name) is None}
        if penalty_type == "google":
            meant |= {name: value for name, value in _PAPER_BEAM.items() if self.effective(name) is None}
        return meant

    def beyond_source(self) -> int | None:
        """The tokens allowed beyond the source's length, or None where another limit was asked for.

        A call that says both a length and this means the length, as in the library `max_new_tokens` comes before
        `max_length`.
        """
        if self.kwargs.get("max_new_tokens") is not None or self.kwargs.get("max_length") is not None:
            return None
        said = "max_length_beyond_source" in self.kwargs
        for settings in (self.given, self.own):
            if settings is None or (said and settings is self.own):
                continue
            beyond = getattr(settings, "max_length_beyond_source", None)
            # `Seq2SeqTrainer` writes all of the library's own settings into `model.generation_config` by itself.
            written = settings.max_length == _LIBRARY_MAX_LENGTH and beyond is not None
            written &= settings is self.own or settings.min_length is not None
            if settings.max_new_tokens is not None or (settings.max_length is not None and not written):
                return None
            if beyond is not None and not said:
                return beyond
        return self.kwargs.get("max_length_beyond_source")


def savable(settings: GenerationConfig) -> GenerationConfig:
    """The same settings without those of a beam where there is none: with them the library refuses to save."""
    if settings.num_beams not in (None, 1):
        return settings
    kept = copy.deepcopy(settings)
    for name, value in _NO_BEAM.items():
        if getattr(kept, name) != value:
            setattr(kept, name, None)
    return kept


def _unchanged(output: Any) -> Any:
    return output


class PaperGenerationMixin(FastSearchMixin):
    """`generate` as in section 6.1 where nothing else is asked for; all else is the library's."""

    _hooks: ClassVar[tuple[str, ...]] = (*FastSearchMixin._hooks, "_maybe_prepare_encoder_kwargs_for_generation")

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        """The library's `generate`; see its documentation for all arguments.

        With no argument but the inputs: beam 4, Google's length penalty with α = 0.6, and for each sentence at most
        its own source length (`</s>` counts on both sides) + 50 new tokens. What a call asks for takes the place of
        that: `max_new_tokens` or `max_length` the place of the limit, `num_beams` that of the beam. What neither the
        call nor its `generation_config` sets comes from `self.generation_config`, the settings of this package
        included, so that `num_beams=5` and `generation_config=GenerationConfig(num_beams=5)` are the same request.
        `do_sample=True` without `num_beams` samples without a beam. A model that writes from right to left gives
        `sequences` as they are read; what else its output holds of single steps is in the order of writing.
        """
        own, longest = with_own_settings(self.generation_config, _OWN_SETTINGS), None
        limits: torch.Tensor | None = None
        finished: Any = _unchanged
        if is_right_to_left(self.config):
            check_request(kwargs, generation_config, self.generation_config)
            finished = partial(as_read, config=self.config)
        plain = not (args or logits_processor or stopping_criteria)
        call = plain_call(self, inputs, generation_config, kwargs) if plain else None
        plan = None if call is None else known_plan(self, call.key)
        if call is not None and plan is not None:
            known = None if call.sentence is None else plan.limits.get(len(call.sentence))
            limits, longest = known or self._limits(inputs, kwargs, plan.beyond_source, prompt_length=1)
            if longest in plan.by_length:
                if call.sentence is not None and len(plan.limits) < MOST_PLANS:
                    plan.limits[len(call.sentence)] = limits, longest
                return finished(planned_search(self, PlannedCall(call, plan, limits, longest)))
        asked = _Asked(kwargs, generation_config, own)
        settings = asked.search()
        beyond = asked.beyond_source()
        if beyond is not None:
            prompt_length = self._prompt_length(asked, kwargs.get("decoder_input_ids"))
            limits, longest = self._limits(inputs, kwargs, beyond, prompt_length)
            stopping_criteria = StoppingCriteriaList(
                [*(stopping_criteria or ()), SourceLengthLimit(limits, prompt_length)]
            )
            if asked.effective("max_new_tokens") is None:
                settings["max_length"] = longest + prompt_length
            else:
                settings["max_new_tokens"] = longest
        settings.update(self._without_hooks(asked, settings))
        generation_config, kwargs = self._with_settings(settings, generation_config, kwargs)
        with recorded(self, call, beyond, limits, longest):
            return finished(
                super().generate(  # type: ignore[misc]
                    inputs, generation_config, logits_processor, stopping_criteria, *args, **kwargs
                )
            )

    def _limits(
        self, inputs: torch.Tensor | None, kwargs: dict[str, Any], beyond: int | None, prompt_length: int
    ) -> tuple[Any, Any]:
        """New tokens allowed for each sentence, and the most of them; None where the sources do not limit them."""
        if beyond is None:
            return None, None
        limits = self._source_lengths(inputs, kwargs) + beyond
        if getattr(self.config, "positional_encoding", None) == "learned":
            # The last new token is never read, so it needs no position.
            limits = limits.clamp(max=self.config.max_position_embeddings - prompt_length + 1)
        return limits, int(limits.max())

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        attention_mask = kwargs.get("attention_mask")
        if attention_mask is not None:
            return attention_mask.long().sum(-1)
        input_ids: torch.Tensor | None = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is not None:
            padding = self.config.pad_token_id
            return input_ids.ne(-1 if padding is None else padding).sum(-1)
        states = kwargs.get("inputs_embeds")
        if states is None:
            encoder_outputs = kwargs.get("encoder_outputs")
            if encoder_outputs is None:
                return torch.ones(1, dtype=torch.long)  # The library's source is then one `<s>`.
            states = encoder_outputs[0]
        return torch.full((states.shape[0],), states.shape[1])

    def _prompt_length(self, asked: "_Asked", decoder_input_ids: torch.Tensor | None) -> int:
        """Tokens in the decoder before the first new one; the library puts a missing start token there itself."""
        if decoder_input_ids is None:
            return 1
        start = asked.effective("decoder_start_token_id")
        start = torch.as_tensor(asked.effective("bos_token_id") if start is None else start)
        lacks_start = bool(decoder_input_ids[:, 0].ne(start.to(decoder_input_ids.device)).all())
        return decoder_input_ids.shape[1] + lacks_start

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As the library does, but for a mask over the target's prompt, which stays as it was given.

        For a static cache the library makes one of four dimensions from it, which shows no longer where a prompt
        begins, so that positions would count its padding.
        """
        mask = kwargs.pop("decoder_attention_mask", None)
        prepared = super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]
        return prepared if mask is None else {**prepared, "decoder_attention_mask": mask.to(self.device)}

    def adjust_generation_fn(self, generation_config: GenerationConfig | None, *args: Any, **kwargs: Any) -> None:
        """Loads the settings of a search; where a checkpoint has no file of them, the paper's are taken."""
        super().adjust_generation_fn(generation_config, *args, **kwargs)  # type: ignore[misc]
        # The library makes some up from the model's configuration: one beam and 20 tokens.
        if generation_config is None and getattr(self.generation_config, "_from_model_config", False):
            self.generation_config = paper_generation_config(self.config)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does, with settings of a search that it takes."""
        chosen = self.generation_config
        self.generation_config = savable(chosen)
        try:
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.generation_config = chosen

    def _maybe_prepare_encoder_kwargs_for_generation(
        self,
        inputs_tensor: torch.Tensor,
        model_kwargs: dict[str, Any],
        model_input_name: str | None,
        generation_config: GenerationConfig,
    ) -> dict[str, Any]:
        """Runs the encoder once, on the fast path where that is possible."""
        if model_kwargs.get("encoder_outputs") is None:
            name = model_input_name or "input_ids"
            output = fast_encoder_output(self, inputs_tensor, name, generation_config, model_kwargs)
            if output is not None:
                model_kwargs["encoder_outputs"] = output
        arguments = inputs_tensor, model_kwargs, model_input_name, generation_config
        return super()._maybe_prepare_encoder_kwargs_for_generation(*arguments)  # type: ignore[misc]

    def _record(
        self,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: StoppingCriteriaList,
        settings: GenerationConfig,
    ) -> Any:
        """Keeps what the library has prepared for the next call like this, if that does not depend on the inputs.

        Where the next one would be found in one session this one is, so that both find the same to the last bit.
        """
        start = input_ids[0, 0]
        if hasattr(self, "start_decoding") or (settings.num_beams == 1 and settings.num_return_sequences > 1):
            return None  # Such a model is not packed; of several samples the sources are repeated.
        if input_ids.shape[1] == 1 and bool((input_ids == start).all()) and unsupported_model(self, "encoder") is None:
            criteria = StoppingCriteriaList(c for c in stopping_criteria if not isinstance(c, SourceLengthLimit))
            planned = record(self, Prepared(int(start), logits_processor, criteria, settings))
            return None if planned is None else sentence_search(self, planned)
        return None


__all__ = ["GoogleLengthPenalty", "PaperGenerationMixin", "SourceLengthLimit", "paper_generation_config", "savable"]
