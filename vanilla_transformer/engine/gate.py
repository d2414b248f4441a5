"""The engine's one gate: whether a call that the library has prepared is the engine's, or the reason why it is not."""

from collections.abc import Iterator
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import torch
import transformers
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)

from .frozen import opened
from .known import unknown, words
from .linear import unsupported_quantization

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
# Exponent of the length penalty up to which its powers are finite in float32.
LARGEST_PENALTY = 10.0
_CRITERIA = {MaxLengthCriteria, EosTokenCriteria}
# Undocumented attributes of the settings that a search receives.
_TENSOR_SETTINGS = ("_eos_token_tensor", "_pad_token_tensor")
# Arguments that `generate` passes to a search: any other is unsupported unless it is None. `Seq2SeqTrainer` passes on
# labels, which change nothing.
_ARGUMENTS = words(
    "attention_mask encoder_outputs labels logits_to_keep output_attentions output_hidden_states past_key_values "
    "position_ids streamer synced_gpus use_cache"
)


class Call(NamedTuple):
    """The arguments of the library's searches, which it prepares and validates.

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


def declined(call: Call) -> str | None:
    """Returns the first thing that the engine does not know in a model or a call, or None: the engine runs it."""
    missing = [f"GenerationConfig.{name}" for name in _TENSOR_SETTINGS if not hasattr(call.settings, name)]
    if missing:
        return f"transformers {transformers.__version__}, which has no {' and no '.join(missing)}"
    found = chain(_of_model(call), _of_settings(call), _of_parts(call), _of_arguments(call), _of_positions(call))
    return next((reason for reason in found if reason), None)


def decodes_itself(model: PreTrainedModel) -> bool:
    """Tells whether a model has a `start_decoding` of its own: one of another family, or an ensemble."""
    return hasattr(model, "start_decoding")


def _of_model(call: Call) -> Iterator[str | None]:
    """Asks each model that decodes; inside a block it was asked at the beginning."""
    for model in getattr(call.model, "members", (call.model,)):
        yield unknown(model) if opened(model) is None or model.training else None
        if call.quantization is not None and decodes_itself(model):
            yield f"a {type(model).__name__}, which has no 8-bit weights"
    yield unsupported_quantization(call.quantization, call.model.device)


def _of_settings(call: Call) -> Iterator[str]:
    settings: Any = call.settings
    if settings.do_sample and settings.num_beams > 1:
        yield "do_sample=True with beams"
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(settings, name):
            yield f"{name}=True"
    if settings.cache_implementation not in (None, "dynamic"):
        yield f"cache_implementation={settings.cache_implementation!r}"
    if not settings.use_cache:
        yield "use_cache=False"
    if any(getattr(settings, name, None) for name in ("low_memory", "is_assistant", "compile_config")):
        yield "low_memory, compile_config or the part of an assistant"
    for name, least in (("max_length", 0), ("num_return_sequences", 1)):
        value = getattr(settings, name)
        # The library fails at these.
        if not isinstance(value, Integral) or value < least:
            yield f"{name}={value}"
    if not abs(settings.length_penalty or 0.0) <= LARGEST_PENALTY:
        yield f"length_penalty={settings.length_penalty}"
    if settings.num_beams == 1 and settings.return_dict_in_generate:
        yield "a dictionary with the cache of a search without a beam"
    ends, vocabulary = settings._eos_token_tensor, call.model.config.vocab_size
    if ends is None:
        yield "no eos_token_id"
    elif settings.num_beams > 1 and max(2, 1 + len(ends)) * settings.num_beams > vocabulary:
        yield f"num_beams={settings.num_beams} in a vocabulary of {vocabulary}"


def _of_parts(call: Call) -> Iterator[str]:
    for part in call.logits_processor:
        if type(part) not in _ROWWISE_PROCESSORS:
            yield type(part).__name__
        if isinstance(getattr(part, "prompt_ignore_length", None), torch.Tensor):
            yield "repetition_penalty after prompts with padding, which it counts for each row"
    for criterion in call.stopping_criteria:
        if type(criterion) not in _CRITERIA and not hasattr(criterion, "limits"):
            yield type(criterion).__name__


def _of_arguments(call: Call) -> Iterator[str]:
    mask = call.kwargs.get("attention_mask")
    if mask is not None and not bool(mask.any(-1).all()):
        # Attention to nothing depends on the implementation.
        yield "a source of padding alone"
    for name, value in call.kwargs.items():
        if name not in _ARGUMENTS and value is not None:
            yield name
    for name in ("synced_gpus", "streamer", "output_attentions", "output_hidden_states"):
        if call.kwargs.get(name):
            yield name
    cache = call.kwargs.get("past_key_values")
    made_here = EncoderDecoderCache if call.model.config.is_encoder_decoder else DynamicCache
    if cache is not None and not (type(cache) is made_here and cache.get_seq_length() == 0):
        yield "past_key_values"


def _of_positions(call: Call) -> Iterator[str]:
    """Refuses explicit positions, except those of a decoder-only model that count its tokens."""
    positions, prompts, mask = call.kwargs.get("position_ids"), call.prompts, call.kwargs.get("attention_mask")
    expected: Any = None
    if not call.model.config.is_encoder_decoder:
        if not prompts.shape[1]:
            yield "prompts without a token"
        if mask is None:
            expected = torch.arange(prompts.shape[1], device=prompts.device)[None]
        else:
            mask = mask.to(prompts.device)
            if mask.shape != prompts.shape or not bool(mask.long().diff(dim=1).ge(0).all()):
                yield "padding after a prompt's beginning"
            expected = (mask.long().cumsum(1) - 1).clamp(min=0)
    if positions is not None and (expected is None or not bool((positions.to(prompts.device) == expected).all())):
        yield "position_ids"
