"""A search as requested by the library, and the first thing in it that the engine does not do."""

from typing import Any, NamedTuple

import torch
import transformers
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .frozen import opened
from .known import words
from .linear import unsupported_quantization
from .search import Limits, Processor

# Processors that look only at each row's own tokens, so that sentences may leave the batch.
_ROWWISE_PROCESSORS = {
    getattr(transformers, name, None)
    for name in words(
        "EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty ForcedBOSTokenLogitsProcessor "
        "ForcedEOSTokenLogitsProcessor InfNanRemoveLogitsProcessor LogitNormalization MinLengthLogitsProcessor "
        "MinNewTokensLengthLogitsProcessor MinPLogitsWarper NoBadWordsLogitsProcessor "
        "NoRepeatNGramLogitsProcessor RepetitionPenaltyLogitsProcessor SequenceBiasLogitsProcessor "
        "SuppressTokensAtBeginLogitsProcessor SuppressTokensLogitsProcessor TemperatureLogitsWarper "
        "TopKLogitsWarper TopPLogitsWarper TypicalLogitsWarper"
    )
}
_CRITERIA = {MaxLengthCriteria, EosTokenCriteria}
# Undocumented attributes of the settings that a search receives.
_TENSOR_SETTINGS = ("_eos_token_tensor", "_pad_token_tensor")
# Arguments that `generate` passes to a search: any other is unsupported unless it is None. `Seq2SeqTrainer` passes on
# labels, which change nothing.
_ARGUMENTS = words(
    "attention_mask encoder_outputs labels logits_to_keep output_attentions output_hidden_states past_key_values "
    "position_ids streamer synced_gpus use_cache"
)


class Request(NamedTuple):
    """The arguments of the library's searches.

    A criterion of another class may give `limits` and `prompt_length`, the new tokens that each sentence may have.
    """

    model: Any
    prompts: torch.Tensor
    logits_processor: Any
    stopping_criteria: StoppingCriteriaList
    settings: GenerationConfig
    kwargs: dict[str, Any]

    @property
    def quantization(self) -> str | None:
        """None, or "int8"."""
        frozen = opened(self.model)
        return (frozen and frozen.quantization) or getattr(self.settings, "quantization", None)

    def unsupported(self) -> str | None:
        """Describes the first thing asked for that the engine does not do; None if it does everything."""
        missing = [f"GenerationConfig.{name}" for name in _TENSOR_SETTINGS if not hasattr(self.settings, name)]
        if missing:
            return f"transformers {transformers.__version__}, which has no {' and no '.join(missing)}"
        return (
            unsupported_quantization(self.quantization, self.model.device)
            or self._unsupported_settings()
            or self._unsupported_parts()
            or self._unsupported_arguments()
            or self._unsupported_positions()
        )

    def _unsupported_settings(self) -> str | None:
        settings = self.settings
        if settings.do_sample and settings.num_beams > 1:
            return "do_sample=True with beams"
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
            if getattr(settings, name):
                return f"{name}=True"
        if settings.cache_implementation not in (None, "dynamic"):
            return f"cache_implementation={settings.cache_implementation!r}"
        if not settings.use_cache:
            return "use_cache=False"
        if any(getattr(settings, name, None) for name in ("low_memory", "is_assistant", "compile_config")):
            return "low_memory, compile_config or the part of an assistant"
        ends: Any = settings._eos_token_tensor
        if ends is None:
            return "no eos_token_id"
        if settings.num_beams > 1 and max(2, 1 + len(ends)) * settings.num_beams > self.model.config.vocab_size:
            return f"num_beams={settings.num_beams} in a vocabulary of {self.model.config.vocab_size}"
        return None

    def _unsupported_parts(self) -> str | None:
        for part in self.logits_processor:
            if type(part) not in _ROWWISE_PROCESSORS:
                return type(part).__name__
            if isinstance(getattr(part, "prompt_ignore_length", None), torch.Tensor):
                return "repetition_penalty after prompts with padding, which it counts for each row"
        for criterion in self.stopping_criteria:
            if type(criterion) not in _CRITERIA and not hasattr(criterion, "limits"):
                return type(criterion).__name__
        return None

    def _unsupported_arguments(self) -> str | None:
        mask = self.kwargs.get("attention_mask")
        if mask is not None and not bool(mask.any(-1).all()):
            # Attention to nothing depends on the implementation.
            return "a source of padding alone"
        for name, value in self.kwargs.items():
            if name not in _ARGUMENTS and value is not None:
                return name
        for name in ("synced_gpus", "streamer", "output_attentions", "output_hidden_states"):
            if self.kwargs.get(name):
                return name
        cache = self.kwargs.get("past_key_values")
        made_here = EncoderDecoderCache if self.model.config.is_encoder_decoder else DynamicCache
        if cache is None or (type(cache) is made_here and cache.get_seq_length() == 0):
            return None
        return "past_key_values"

    def _unsupported_positions(self) -> str | None:
        """Refuses explicit positions, except those of a decoder-only model that count its tokens."""
        positions, prompts = self.kwargs.get("position_ids"), self.prompts
        if self.model.config.is_encoder_decoder:
            return None if positions is None else "position_ids"
        mask = self.kwargs.get("attention_mask")
        if not prompts.shape[1]:
            return "prompts without a token"
        if mask is None:
            expected = torch.arange(prompts.shape[1], device=prompts.device)[None]
        else:
            mask = mask.to(prompts.device)
            if mask.shape != prompts.shape or not bool(mask.long().diff(dim=1).ge(0).all()):
                return "padding after a prompt's beginning"
            expected = (mask.long().cumsum(1) - 1).clamp(min=0)
        if positions is not None and not bool((positions.to(prompts.device) == expected).all()):
            return "position_ids"
        return None

    def limits(self, prompts_NP: torch.Tensor) -> Limits:
        """Returns when hypotheses and searches end, from the settings and all criteria."""
        settings, prompt_length, device = self.settings, prompts_NP.shape[1], prompts_NP.device
        longest: Any = settings.max_length - prompt_length
        lengths = torch.full((len(prompts_NP),), torch.iinfo(torch.long).max, device=device)
        end_tokens = []
        # A caller's criteria replace those made from the settings, or add to them.
        for criterion in self.stopping_criteria:
            if isinstance(criterion, MaxLengthCriteria):
                lengths = lengths.clamp(max=criterion.max_length - prompt_length)
            elif isinstance(criterion, EosTokenCriteria):
                end_tokens.append(criterion.eos_token_id.to(device).flatten())
            else:
                own: Any = criterion
                allowed = own.limits.to(device) + (own.prompt_length - prompt_length)
                # A sentence may have several samples.
                lengths = lengths.minimum(allowed.repeat_interleave(len(lengths) // len(allowed)))
        lengths = lengths.clamp(min=1)  # Criteria are checked only after a token is written.
        # The library ranks as many candidates as the settings' end tokens require, whatever else ends a hypothesis.
        known_ends: Any = settings._eos_token_tensor
        # If scores never rise, the returned hypotheses are certain before all W have ended.
        certain = settings.early_stopping == "never" and all(map(_suppression, self.logits_processor))
        return Limits(
            end_tokens=torch.cat(end_tokens),
            candidates=max(2, 1 + len(known_ends)) * settings.num_beams,
            lengths=lengths,
            horizon=lengths if certain else torch.full_like(lengths, longest),
            counted=settings.num_return_sequences if certain else settings.num_beams,
            length_penalty=1.0 if settings.length_penalty is None else settings.length_penalty,
            early_stopping=settings.early_stopping,
        )

    def padding(self) -> Any:
        """Returns the token after the end of a hypothesis; None without padding and end."""
        padding: Any = self.settings._pad_token_tensor
        return self.model.config.pad_token_id if padding is None else int(padding)


def processor(parts: Any) -> Processor | None:
    """Combines all processors into one that may change scores in place; None if there are none."""
    parts = [_suppression(part) or part for part in parts]

    def process(ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
        for part in parts:
            scores_RV = part(ids_RT, scores_RV)
        return scores_RV

    return process if parts else None


def _suppression(processor: Any) -> Processor | None:
    """Suppresses tokens in place where earlier tokens do not matter: the library's processor copies all scores."""
    try:
        suppressed = _suppressed(processor)
    except AttributeError:  # This version uses other names: call the processor itself.
        return None
    if suppressed is None:
        return None
    tokens, first, while_short = suppressed

    def suppress(ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
        if first <= ids_RT.shape[1] < while_short:
            scores_RV.index_fill_(1, tokens.to(scores_RV.device), -torch.inf)
        return scores_RV

    return suppress


def _suppressed(processor: Any) -> tuple[torch.Tensor, int, int] | None:
    """Returns the tokens, and the lengths from and below which they are suppressed; None for other processors."""
    endless = 1 << 62
    if type(processor) is transformers.MinLengthLogitsProcessor:
        return processor.eos_token_id, 0, processor.min_length
    if type(processor) is transformers.MinNewTokensLengthLogitsProcessor:
        return processor.eos_token_id, 0, processor.prompt_length_to_skip + processor.min_new_tokens
    if type(processor) is transformers.SuppressTokensLogitsProcessor:
        return processor.suppress_tokens, 0, endless
    if type(processor) is transformers.SuppressTokensAtBeginLogitsProcessor:
        return processor.begin_suppress_tokens, processor.begin_index, processor.begin_index + 1
    if type(processor) is transformers.NoBadWordsLogitsProcessor:
        banned = list(processor.sequence_bias)
        if all(len(word) == 1 for word in banned):
            return torch.tensor([word[0] for word in banned]), 0, endless
    return None
