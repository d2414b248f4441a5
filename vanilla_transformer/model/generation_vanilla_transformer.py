"""Section 6.1: beam search with Google's length penalty and a length limit for each sentence.

The search is transformers' own.
"""

import copy
import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

_PAPER_EXPONENT = 0.6
MAX_LENGTH_BEYOND_SOURCE = 50
# Settings of a beam: the paper's values; without a beam the library's defaults apply.
_PAPER_BEAM = {"length_penalty": _PAPER_EXPONENT, "early_stopping": "never"}
_NO_BEAM = {"length_penalty": 1.0, "early_stopping": False}
# Settings that only this package has.
_OWN_SETTINGS = ("length_penalty_type", "max_length_beyond_source")
# Arguments of `generate` that a step of the decoder does not need.
_FOR_THE_ENCODER = ("inputs_embeds", "labels")


class GoogleLengthPenalty(float):
    """α of the length penalty ((5 + |Y|) / 6)^α that divides a hypothesis's log-probability (Wu et al. 2016, Eq. 14).

    A search divides by `length ** length_penalty`: this number gives that power Google's meaning, so that selecting,
    finishing and stopping all follow it.
    """

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5.0 + length) / 6.0) ** float(self)


class SourceLengthLimit(StoppingCriteria):
    """Ends each hypothesis at the limit of new tokens of its own sentence.

    Attributes:
        eos_token_id: The library pads rows that have ended only where a criterion has this, whatever its value.

    Args:
        limits: New tokens allowed for each sentence, (sentences,).
        prompt_length: Tokens that the decoder starts with.
    """

    eos_token_id = None

    def __init__(self, limits: torch.Tensor, prompt_length: int) -> None:
        self.limits, self.prompt_length = limits, prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:
        """Marks the rows that have reached their sentence's limit; the rows of one sentence are adjacent."""
        limits = self.limits.to(input_ids.device).repeat_interleave(input_ids.shape[0] // len(self.limits))
        return input_ids.shape[1] - self.prompt_length >= limits


def paper_generation_config(
    config: PreTrainedConfig,
    num_beams: int = 4,
    length_penalty: float = _PAPER_EXPONENT,
    length_penalty_type: Literal["google", "huggingface"] = "google",
    max_length_beyond_source: int = MAX_LENGTH_BEYOND_SOURCE,
) -> GenerationConfig:
    """Returns the settings of section 6.1: beam 4, α = 0.6, source length + 50 tokens, exact early stopping.

    The paper chose beam and α on the development set, and a recipe may too; one beam is greedy search, without α.
    Two settings are this package's own: `length_penalty_type` ("google", or "huggingface" for the library's
    length^penalty) and `max_length_beyond_source` (None for no limit but the library's). A sentence is cut at this
    limit: `forced_eos_token_id` is for the library's own.
    """
    of_beams = {"length_penalty": length_penalty, "early_stopping": "never"} if num_beams > 1 else {}
    return GenerationConfig(
        num_beams=num_beams,
        **of_beams,
        length_penalty_type=length_penalty_type,
        max_length_beyond_source=max_length_beyond_source,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def _beam_settings(call: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the beam and its penalty that a call implies, given the model's own.

    Without a beam there are none, because the library would warn of them. Where Google's penalty has no exponent, as
    in a model of greedy search that is given a beam, the paper's is used.

    Raises:
        ValueError: There is no penalty of that name.
    """
    settings: dict[str, Any] = {"length_penalty_type": "huggingface", **own, **call}
    kind = settings["length_penalty_type"]
    if kind not in ("google", "huggingface"):
        raise ValueError(f"length_penalty_type must be 'google' or 'huggingface', not {kind!r}.")
    implied: dict[str, Any] = {}
    beams = call.get("num_beams")
    if beams is None:
        beams = implied["num_beams"] = 1 if call.get("do_sample") else own.get("num_beams") or 1
    if beams == 1:
        return implied | {name: value for name, value in _NO_BEAM.items() if call.get(name) is None}
    if kind == "google":
        implied |= {name: value for name, value in _PAPER_BEAM.items() if settings.get(name) is None}
        exponent = settings.get("length_penalty")
        implied["length_penalty"] = GoogleLengthPenalty(_PAPER_EXPONENT if exponent is None else exponent)
    return implied


def _tokens_beyond_source(call: Mapping[str, Any], own: Mapping[str, Any]) -> int | None:
    """Returns the tokens allowed beyond the source's length, or None where another limit was given.

    If a call gives both a length and this, the length wins, as `max_new_tokens` beats `max_length` in the library.
    """
    for settings in (call, own):
        length, beyond = settings.get("max_length"), settings.get("max_length_beyond_source")
        # `Seq2SeqTrainer` writes all of the library's defaults into `model.generation_config`, and saves them: a
        # length of 20 beside another that nobody gives to a translator is its own. One that was 20 before looks
        # the same afterwards.
        is_written = length == 20 and beyond is not None and settings.get("assistant_lookbehind") is not None
        if settings.get("max_new_tokens") is not None or (length is not None and not is_written):
            return None
        if beyond is not None or "max_length_beyond_source" in settings:
            return beyond
    return None


def _given(settings: GenerationConfig | None) -> dict[str, Any]:
    return {name: value for name, value in vars(settings).items() if value is not None} if settings else {}


def savable(settings: GenerationConfig) -> GenerationConfig:
    """Returns the settings without those of a beam where there is none: the library refuses to save them."""
    if settings.num_beams not in (None, 1):
        return settings
    kept = copy.deepcopy(settings)
    for name, value in _NO_BEAM.items():
        if getattr(kept, name) != value:
            setattr(kept, name, None)
    return kept


class PaperGenerationMixin(GenerationMixin):
    """transformers' `generate` with the defaults of section 6.1, in which a sentence's hypotheses share its source.

    The encoder's output, the mask over the source, and the keys and values that cross-attention makes of them have one
    row per sentence, while the decoder's inputs have one row per hypothesis.
    """

    config: Any
    device: torch.device

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        """Call the `generate` of transformers, whose documentation describes all arguments.

        Without arguments beyond the inputs: beam 4, Google's length penalty with α = 0.6, and for each sentence at
        most its own source length (`</s>` counts on both sides) + 50 new tokens. A call can override each of these:
        `max_new_tokens` or `max_length` the limit, `num_beams` the beam. A setting given by neither the call nor its
        `generation_config` comes from `self.generation_config`, including this package's own settings, so that
        `num_beams=5` and `generation_config=GenerationConfig(num_beams=5)` are the same request. `do_sample=True`
        without `num_beams` samples without a beam.
        """
        encoded = kwargs.get("encoder_outputs")
        if isinstance(encoded, tuple):  # transformers reads the states by their name.
            kwargs["encoder_outputs"] = self.named_encoder_outputs(encoded)
        # As in the library, None as an argument is a value; None in a configuration means not set.
        call, own = {**_given(generation_config), **kwargs}, _given(self.generation_config)
        settings, beyond = _beam_settings(call, own), _tokens_beyond_source(call, own)
        kwargs = {name: value for name, value in kwargs.items() if name not in _OWN_SETTINGS}
        if beyond is not None:
            prompt_length = self._prompt_length({**own, **call})
            limits = self._source_lengths(inputs, kwargs) + beyond
            if getattr(self.config, "positional_encoding", None) == "learned":
                # The last new token is never read, so it needs no position.
                limits = limits.clamp(max=self.config.max_position_embeddings - prompt_length + 1)
            limit = SourceLengthLimit(limits, prompt_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or ()), limit])
            # An end that is forced at the longest of them would make a sentence's result depend on its batch.
            settings |= {"max_new_tokens": int(limits.max()), "forced_eos_token_id": None}
        padding, no_token = {**own, **call}.get("pad_token_id"), self.config.vocab_size
        has_beam = (settings.get("num_beams") or call["num_beams"]) > 1
        if has_beam and padding == 0:
            # transformers takes 0 for a missing id, and would fill the shorter hypotheses with `</s>`.
            settings["pad_token_id"] = no_token
        if generation_config is None:
            kwargs |= settings
        else:  # The library warns of settings beside a configuration.
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**settings)
            kwargs = {name: value for name, value in kwargs.items() if name not in settings}
        given = inputs, generation_config, logits_processor, stopping_criteria, *args
        outputs: Any = super().generate(*given, **kwargs)
        if has_beam and padding is not None:  # It fills them with -1 if there is no `</s>`.
            sequences: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
            sequences.masked_fill_(sequences.eq(no_token) | sequences.lt(0), padding)
        return outputs

    def named_encoder_outputs(self, outputs: tuple[torch.Tensor, ...]) -> ModelOutput:
        """Return the encoder's outputs, given as a tuple, under their names."""
        return BaseModelOutput(outputs[0])

    def _expand_inputs_for_generation(  # type: ignore[override]
        self, expand_size: int = 1, is_encoder_decoder: bool = False, **inputs: Any
    ) -> tuple[torch.LongTensor, dict[str, Any]]:
        """Repeat the target's inputs for each hypothesis, but not the source, which the hypotheses share."""
        mask = inputs.pop("attention_mask", None)
        if mask is not None and bool(mask.all()):
            mask = None  # Without padding a step needs no mask.
        input_ids, expanded = super()._expand_inputs_for_generation(expand_size, False, **inputs)  # type: ignore[misc]
        return input_ids, {**expanded, "attention_mask": mask}

    def _get_logits_processor(self, *args: Any, encoder_input_ids: Any = None, **kwargs: Any) -> LogitsProcessorList:
        """Return the processors of transformers; those that read the source ignore its padding."""
        processors: LogitsProcessorList = super()._get_logits_processor(  # type: ignore[misc]
            *args, encoder_input_ids=encoder_input_ids, **kwargs
        )
        for one in processors if encoder_input_ids is not None else ():
            is_real = encoder_input_ids.ne(self.config.pad_token_id)
            if isinstance(one, EncoderRepetitionPenaltyLogitsProcessor):
                first_real = encoder_input_ids.gather(1, is_real.int().argmax(1, keepdim=True))
                one.encoder_input_ids = encoder_input_ids.where(is_real, first_real)
            elif isinstance(one, EncoderNoRepeatNGramLogitsProcessor):
                rows = (row[real][None] for row, real in zip(encoder_input_ids, is_real, strict=True))
                one.generated_ngrams = [type(one)(one.ngram_size, row).generated_ngrams[0] for row in rows]
        return processors

    def _reorder_cache(self, cache: Any, beam_idx: torch.Tensor) -> Any:
        """Give each row the past of the row in `beam_idx`, which belongs to the same sentence."""
        getattr(cache, "self_attention_cache", cache).reorder_cache(beam_idx)
        return cache

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        attention_mask = kwargs.get("attention_mask")
        if attention_mask is not None:
            return attention_mask.long().sum(-1)
        input_ids: torch.Tensor | None = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is not None:
            padding = self.config.pad_token_id
            return input_ids.ne(-1 if padding is None else padding).sum(-1)
        states = kwargs.get("inputs_embeds")
        if states is None and kwargs.get("encoder_outputs") is not None:
            states = kwargs["encoder_outputs"][0]
        if states is None:
            return torch.ones(1, dtype=torch.long)  # The library's source is then a single `<s>`.
        return torch.full((states.shape[0],), states.shape[1])

    def _prompt_length(self, settings: dict[str, Any]) -> int:
        """Returns the number of decoder tokens before the first new one; the library adds a missing start token."""
        prompts = settings.get("decoder_input_ids")
        if prompts is None:
            return 1
        start = settings.get("decoder_start_token_id")
        start = torch.as_tensor(settings.get("bos_token_id") if start is None else start)
        return prompts.shape[1] + bool(prompts[:, 0].ne(start.to(prompts.device)).all())

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.LongTensor,
        next_sequence_length: int | None = None,
        is_first_iteration: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next step: the new target tokens, and all other arguments.

        Unlike the version of transformers, it passes a mask over the target on as it is, also with a static cache: it
        shows where a prompt begins, so that positions do not count its padding.
        """
        new = input_ids if next_sequence_length is None else input_ids[:, -next_sequence_length:]
        given = {name: value for name, value in kwargs.items() if name not in _FOR_THE_ENCODER}
        given["decoder_input_ids"] = new.contiguous()
        if self.device.type == "meta":  # Offloaded weights are on no device.
            return given
        device = self.device
        return {name: value.to(device) if torch.is_tensor(value) else value for name, value in given.items()}

    def adjust_generation_fn(
        self, generation_config: GenerationConfig | None, *args: object, **kwargs: object
    ) -> None:
        """Loads the search settings; a checkpoint without a file of them gets the paper's."""
        super().adjust_generation_fn(generation_config, *args, **kwargs)  # type: ignore[misc]
        # The library derives its own from the model's configuration: one beam and 20 tokens.
        if generation_config is None and getattr(self.generation_config, "_from_model_config", False):
            self.generation_config = paper_generation_config(self.config)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: object, **kwargs: object) -> None:
        """Saves as the library does, with search settings that it accepts."""
        chosen = self.generation_config
        self.generation_config = savable(chosen)
        try:
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.generation_config = chosen
