"""The fast path of `generate`: what the library has prepared goes through this package's own search.

It covers beam search, greedy search and sampling with settings that change only limits, penalty and scores of single
tokens. Anything else is unsupported (`unsupported_reason`), and the library's own search does it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
from transformers.cache_utils import DynamicLayer
from transformers.generation import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .call_plans import is_hooked
from .constrained_search import RequiredPhrases, constrained_beam_search
from .cpu import computing_dtype
from .onnx_sessions import SessionCache, SessionDecoder, SessionEncoder, decodes_in_session, encodes_in_session
from .packed_copies import packed
from .packed_decoder import DecoderCache, PackedDecoder
from .packed_encoder import PackedEncoder
from .sampling import SampledByRow
from .search import (
    Choice,
    Decoding,
    Hypotheses,
    Limits,
    Processor,
    SourceLengthLimit,
    beam_search,
    greedy_search,
    likeliest,
    sampled,
)

logger = logging.get_logger(__name__)

# Processors that look at each row alone, and only at its own tokens, so that sentences may leave the batch.
ROWWISE_PROCESSORS = {
    getattr(transformers, name, None)
    for name in (
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor",
        "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "MinPLogitsWarper",
        "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    )
}
SUPPORTED_PARTS = {RequiredPhrases, MaxLengthCriteria, EosTokenCriteria, SourceLengthLimit}
# Undocumented attributes of the settings that reach a search.
TENSOR_SETTINGS = ("_eos_token_tensor", "_pad_token_tensor")
# Arguments that `generate` passes to a search: any other is unsupported unless it is None. `Seq2SeqTrainer` passes
# labels on, which change nothing.
SUPPORTED_ARGUMENTS = {
    "attention_mask",
    "encoder_outputs",
    "labels",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "past_key_values",
    "position_ids",
    "streamer",
    "synced_gpus",
    "use_cache",
}
# Where the modules of a plain model come from, beside this package.
PLAIN_MODULES = ("torch.nn.modules.", "transformers.activations")
# Implementations of the same attention.
ATTENTIONS = {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", None}


def unsupported_reason(
    model: Any,
    logits_processor: Any,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
) -> str | None:
    """The first thing asked for that the fast path does not support, in words; None where it supports everything."""
    missing = [f"GenerationConfig.{name}" for name in TENSOR_SETTINGS if not hasattr(generation_config, name)]
    if missing:
        return unsupported_library(*missing)
    return (
        _unsupported_quantization(generation_config, model.device)
        or _unsupported_settings(generation_config, model.config.vocab_size)
        or _unsupported_arguments(logits_processor, stopping_criteria, generation_config, kwargs)
        or _unsupported_cache(model, kwargs.get("past_key_values"))
        or _unsupported_positions(model, input_ids, kwargs)
        or _unsupported_decoder(model, generation_config)
    )


def unsupported_library(*missing: str) -> str:
    """Warns once, and returns in words, that the library lacks names that the fast path needs."""
    version = f"transformers {transformers.__version__}, which has no {' and no '.join(missing)}"
    logger.warning_once(
        f"The fast search of vanilla_transformer was not written for {version}: the library's own, slower one is "
        "used. Install a newer vanilla_transformer, or an older transformers."
    )
    return version


def _unsupported_quantization(settings: GenerationConfig, device: torch.device) -> str | None:
    quantization = getattr(settings, "quantization", None)
    if quantization not in (None, "int8"):
        raise ValueError(f"quantization must be None or 'int8', not {quantization!r}.")
    if quantization is not None and device.type != "cpu":
        return f"a model on {device}: 8-bit weights are for CPUs"
    if quantization is not None and not hasattr(torch.ops.quantized, "linear_dynamic"):
        return f"torch {torch.__version__}, which no longer has 8-bit linear layers"
    if quantization is not None and torch.backends.quantized.engine == "none":
        return f"torch {torch.__version__}, which was built without 8-bit linear layers"
    return None


def _unsupported_settings(settings: GenerationConfig, types: int) -> str | None:
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
    # The settings with which an assistant's search is asked about the encoder have no tensors yet.
    ends = getattr(settings, "_eos_token_tensor", None)
    if ends is None:
        return "no eos_token_id"
    if settings.num_beams > 1 and max(2, 1 + len(ends)) * settings.num_beams > types:
        return f"num_beams={settings.num_beams} in a vocabulary of {types}"
    return None


def _unsupported_arguments(
    logits_processor: Any, stopping_criteria: StoppingCriteriaList, settings: GenerationConfig, kwargs: dict[str, Any]
) -> str | None:
    if _draws_by_row(logits_processor):
        logits_processor = logits_processor[:-1]
    for part in (*logits_processor, *stopping_criteria):
        if type(part) not in ROWWISE_PROCESSORS | SUPPORTED_PARTS:
            return type(part).__name__
        if isinstance(getattr(part, "prompt_ignore_length", None), torch.Tensor):
            return "repetition_penalty after prompts with padding, which it counts for each row"
    if _has_empty_source(kwargs):
        return "a source of padding alone"
    for name, value in kwargs.items():
        if name not in SUPPORTED_ARGUMENTS and value is not None:
            return name
    for name in ("synced_gpus", "streamer", "output_attentions", "output_hidden_states"):
        if kwargs.get(name):
            return name
    return None


def _unsupported_cache(model: Any, cache: Any) -> str | None:
    made_here = EncoderDecoderCache if model.config.is_encoder_decoder else DynamicCache
    if cache is None or (type(cache) is made_here and cache.get_seq_length() == 0):
        return None
    return "past_key_values"


def _unsupported_positions(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any]) -> str | None:
    """An encoder-decoder takes no positions of a caller's own; a decoder-only model's must count its tokens."""
    if model.config.is_encoder_decoder:
        return None if kwargs.get("position_ids") is None else "position_ids"
    return _unsupported_prompts(input_ids, kwargs)


def _unsupported_prompts(input_ids: torch.Tensor, kwargs: dict[str, Any]) -> str | None:
    """Prompts that do not end where their rows do, and positions that do not count their tokens."""
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if not input_ids.shape[1]:
        return "prompts without a token"
    if mask is None:
        expected = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    else:
        mask = mask.to(input_ids.device)
        if mask.shape != input_ids.shape or not bool(mask.long().diff(dim=1).ge(0).all()):
            return "padding after a prompt's beginning"
        expected = (mask.long().cumsum(1) - 1).clamp(min=0)
    if positions is not None and not bool((positions.to(input_ids.device) == expected).all()):
        return "position_ids"
    return None


def _has_empty_source(kwargs: dict[str, Any]) -> bool:
    """Whether a source is padding alone: what there is to attend to is then a matter of the implementation."""
    mask = kwargs.get("attention_mask")
    return mask is not None and not bool(mask.any(-1).all())


def _decodes_itself(model: Any) -> bool:
    """Whether a model brings a `Decoding` of its own; the Transformer's is packed here."""
    return hasattr(model, "start_decoding")


def _unsupported_decoder(model: Any, settings: GenerationConfig) -> str | None:
    """The first thing in a model, or in one of several that are searched together, which is not supported."""
    if hasattr(model, "members"):
        reasons = (_unsupported_decoder(member, settings) for member in model.members)
        return next((reason for reason in reasons if reason is not None), None)
    return _unsupported_in_own(model, settings) if _decodes_itself(model) else unsupported_model(model)


def _unsupported_in_own(model: Any, settings: GenerationConfig) -> str | None:
    if model.training:
        return "dropout (model.train())"
    if getattr(settings, "quantization", None) is not None:
        return f"a {type(model).__name__}, which has no 8-bit weights"
    for name, module in model.named_modules():
        if is_hooked(module) or "forward" in vars(module):
            return f"a hook on the model's {name or 'forward'}"
    return None


def unsupported_model(model: Any, stack: str = "decoder") -> str | None:
    """What of a model's own encoder or decoder the fast path does not support, in words."""
    if model.training:
        return "dropout (model.train())"
    if model.config._attn_implementation not in ATTENTIONS:
        return f"attn_implementation={model.config._attn_implementation!r}"
    # Alone, a stack is all that the model has, its embedding too.
    alone = not model.config.is_encoder_decoder
    where, part = ("model", model.model) if alone else (f"model.{stack}", getattr(model.model, stack))
    layers = [(f"{where}.{name}", module) for name, module in part.named_modules()]
    device = model.device
    ends = [*([] if alone else [("model.shared", model.model.shared)]), ("lm_head", model.lm_head)]
    for name, module in [("", model), ("model", model.model), *ends, *layers]:
        if is_hooked(module) or "forward" in vars(module):
            return f"a hook on the model's {name or 'forward'}"
        origin = type(module).__module__
        if not origin.startswith(PLAIN_MODULES) and origin.rpartition(".")[0] != __name__.rpartition(".")[0]:
            return f"{name}, which is a {type(module).__name__}"
        for key, weight in module._parameters.items():
            if weight is None:
                continue
            if type(weight) is not torch.nn.Parameter or weight.device != device or not weight.is_floating_point():
                return f"{name}.{key}, which is not a plain tensor on {device}"
    return None


def fast_encoder_output(
    model: Any, inputs: torch.Tensor, name: str, settings: GenerationConfig, kwargs: dict[str, Any]
) -> BaseModelOutput | None:
    """What the encoder makes of `inputs`, which `generate` calls `name`; None where the library has to ask it.

    A search that falls back to the library's later, for a logits processor for example, gets it as well: it is the
    same but for rounding.
    """
    given = {key for key, value in kwargs.items() if value is not None and not key.startswith("decoder_")}
    if (
        model.device.type != "cpu"
        or _decodes_itself(model)
        or not given <= {*SUPPORTED_ARGUMENTS, name}
        or _has_empty_source(kwargs)
        or _unsupported_quantization(settings, model.device)
        or _unsupported_settings(settings, model.config.vocab_size)
        or unsupported_model(model, "encoder")
    ):
        return None
    arguments = {name: inputs, "attention_mask": kwargs.get("attention_mask")}
    return BaseModelOutput(last_hidden_state=encoded(model, settings, arguments))


def encoded(
    model: Any, settings: GenerationConfig, arguments: dict[str, Any], weights: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """The encoder's output in the type in which the library's search would compute."""
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if autocast else model.dtype
    computing = computing_dtype(dtype, model.device)
    quantization = getattr(settings, "quantization", None)
    rows = next(part.shape[0] * part.shape[1] for name, part in arguments.items() if name != "attention_mask")
    in_session = encodes_in_session(model, computing, quantization, rows)
    with torch.autocast("cpu", enabled=False):
        encoder = packed(model, SessionEncoder if in_session else PackedEncoder, computing, quantization, weights)
        # Where the library does not get it, as in `_decoding`.
        with nullcontext() if weights is None else torch.inference_mode():
            return encoder(**arguments).to(dtype)


def _packed_decoder(
    model: Any,
    dtype: torch.dtype,
    settings: GenerationConfig,
    sentences: int,
    weights: list[torch.Tensor] | None = None,
) -> Any:
    """The decoder packed for a search of so many sentences."""
    quantization, rows = getattr(settings, "quantization", None), sentences * settings.num_beams
    in_session = decodes_in_session(model, dtype, quantization, rows)
    return packed(model, SessionDecoder if in_session else PackedDecoder, dtype, quantization, weights)


def start_decoding(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, settings: GenerationConfig
) -> Decoding:
    """The decoding of some sources before the first token: what a search of several models asks each of them for."""
    arguments = {"input_ids": input_ids, "attention_mask": attention_mask}
    if _decodes_itself(model):
        return model.start_decoding(model.get_encoder()(**arguments), attention_mask, 1)
    if reason := unsupported_model(model, "encoder"):
        raise ValueError(f"This package's own search does not support {reason}.")
    decoder = _packed_decoder(model, computing_dtype(model.dtype, model.device), settings, len(input_ids))
    return decoder.start(encoded(model, settings, arguments), attention_mask)


class SearchInputs(NamedTuple):
    """What a search begins with: prompts (N, P), the encoder's output (N, S, D) and the source's mask (N, S).

    Without an encoder's output the mask is that of the prompts, (N, P). `weights` are those of the decoder where they
    are known; a model that decodes itself gives its `decoding` instead.
    """

    prompts_NP: torch.Tensor
    encoded_NSD: torch.Tensor | None
    mask_NS: torch.Tensor | None
    weights: list[torch.Tensor] | None = None
    decoding: Decoding | None = None


def inputs_of_rows(model: Any, input_ids: torch.Tensor, kwargs: dict[str, Any], width: int) -> SearchInputs:
    """What the library hands to a search, once for each sentence and not for each of its `width` hypotheses."""
    mask = kwargs.get("attention_mask")
    if _decodes_itself(model):
        own = model.start_decoding(kwargs["encoder_outputs"], mask, width)
        return SearchInputs(input_ids[::width], None, None, decoding=own)
    encoded_NSD = kwargs["encoder_outputs"][0][::width] if model.config.is_encoder_decoder else None
    return SearchInputs(input_ids[::width], encoded_NSD, None if mask is None else mask[::width])


def fast_beam_search(
    model: Any,
    inputs: SearchInputs,
    logits_processor: Any,
    stopping_criteria: StoppingCriteriaList,
    settings: GenerationConfig,
) -> GenerateBeamEncoderDecoderOutput | GenerateBeamDecoderOnlyOutput | torch.LongTensor:
    """Beam search as `GenerationMixin._beam_search` gives it, with its arguments, and `sequences_scores` always.

    There is no `past_key_values` in what it returns: that of the library belongs to hypotheses that were still
    running, and to none that is returned.
    """
    width, returned = settings.num_beams, settings.num_return_sequences
    prompts_NP = inputs.prompts_NP
    required = next((part for part in logits_processor if isinstance(part, RequiredPhrases)), None)
    logits_processor = [part for part in logits_processor if part is not required]
    width += 0 if required is None else required.more_beams
    with _decoding(model, inputs, settings) as cache:
        limits = search_limits(prompts_NP, stopping_criteria, settings, logits_processor)
        process = _processor(logits_processor)
        if required is None:
            found = beam_search(cache, prompts_NP, width, limits, process)
        else:
            found = constrained_beam_search(cache, prompts_NP, width, limits, required, process)
    found = Hypotheses(*(part.clone() for part in found))  # Tensors of inference mode have no use in training.
    best = Hypotheses(*(part[:, :returned].flatten(0, 1) for part in found))
    longest = int(best.lengths.max())
    unused = torch.arange(longest, device=prompts_NP.device) >= best.lengths[:, None]
    tokens = best.paths[:, 0, :longest].masked_fill(unused, padding_of(model, settings))
    sequences: Any = torch.cat((prompts_NP.repeat_interleave(returned, 0), tokens), 1)
    if not settings.return_dict_in_generate:
        return sequences
    first_rows = width * torch.arange(len(prompts_NP), device=prompts_NP.device).repeat_interleave(returned)
    parents = (best.paths[:, 1, :longest] + first_rows[:, None]).masked_fill(unused, -1)
    output = GenerateBeamEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return output(sequences=sequences, sequences_scores=best.scores, beam_indices=parents.to(torch.int32))


def fast_greedy_search(
    model: Any,
    inputs: SearchInputs,
    logits_processor: Any,
    stopping_criteria: StoppingCriteriaList,
    settings: GenerationConfig,
) -> GenerateEncoderDecoderOutput | GenerateDecoderOnlyOutput | torch.LongTensor:
    """Greedy search or sampling as `GenerationMixin._sample` gives it, with its arguments.

    Sampling by torch's generator draws for finished sentences too, as the library does: by one seed the same tokens
    are drawn.
    """
    returns_cache = settings.return_dict_in_generate
    choose: Choice = sampled if settings.do_sample else likeliest
    if by_row := _draws_by_row(logits_processor):
        choose, logits_processor = logits_processor[-1].draw, logits_processor[:-1]
    with _decoding(model, inputs, settings) as cache:
        limits = search_limits(inputs.prompts_NP, stopping_criteria, settings, logits_processor)
        sequences: Any = greedy_search(
            cache,
            inputs.prompts_NP,
            limits,
            padding_of(model, settings),
            _processor(logits_processor),
            choose,
            may_drop_finished=not (returns_cache or (settings.do_sample and not by_row)),
        )
    sequences = sequences.clone()
    if not returns_cache:
        return sequences
    output = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    if not isinstance(cache, DecoderCache | SessionCache):
        return output(sequences=sequences, past_key_values=cache.state)
    return output(sequences=sequences, past_key_values=as_library_cache(model, cache.keys_and_values()))


@contextmanager
def _decoding(model: Any, inputs: SearchInputs, settings: GenerationConfig) -> Iterator[Any]:
    """The decoding before the first token, in the type that the library's search would compute in."""
    if inputs.decoding is not None:
        with torch.inference_mode():
            yield inputs.decoding
        return
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = computing_dtype(torch.get_autocast_dtype(device) if autocast else model.dtype, model.device)
    with torch.autocast(device, enabled=False):
        decoder = _packed_decoder(model, dtype, settings, len(inputs.prompts_NP), inputs.weights)
        # Without the counts of torch for gradients small operations take three quarters of the time.
        with torch.inference_mode():
            if inputs.encoded_NSD is None:
                yield decoder.start_without_source(len(inputs.prompts_NP), inputs.mask_NS)
            else:
                yield decoder.start(inputs.encoded_NSD, inputs.mask_NS)


def search_limits(
    prompts_NP: torch.Tensor, stopping_criteria: StoppingCriteriaList, settings: GenerationConfig, processors: Any
) -> Limits:
    """When hypotheses and searches end, from all that says so."""
    prompt_length, device = prompts_NP.shape[1], prompts_NP.device
    longest = settings.max_length - prompt_length
    lengths = torch.full((len(prompts_NP),), torch.iinfo(torch.long).max, device=device)
    end_tokens = []
    # Criteria of the caller's own stand in the place of those that the settings have led to, or beside them.
    for criterion in stopping_criteria:
        if isinstance(criterion, SourceLengthLimit):
            allowed = criterion.limits.to(device) + (criterion.prompt_length - prompt_length)
            # Of a sentence several samples may be drawn.
            lengths = lengths.minimum(allowed.repeat_interleave(len(lengths) // len(allowed)))
        elif isinstance(criterion, MaxLengthCriteria):
            lengths = lengths.clamp(max=criterion.max_length - prompt_length)
        else:
            end_tokens.append(criterion.eos_token_id.to(device).flatten())
    lengths = lengths.clamp(min=1)  # A criterion is asked about what has been written.
    # The library ranks so many candidates as the settings have ends, whatever else ends a hypothesis.
    known_ends: Any = settings._eos_token_tensor
    # Where scores never rise, what is returned is certain before all W hypotheses are.
    certain = settings.early_stopping == "never" and all(map(_suppression, processors))
    return Limits(
        end_tokens=torch.cat(end_tokens),
        candidates=max(2, 1 + len(known_ends)) * settings.num_beams,
        lengths=lengths,
        horizon=lengths if certain else torch.full_like(lengths, longest),
        counted=settings.num_return_sequences if certain else settings.num_beams,
        length_penalty=float(settings.length_penalty),
        google=getattr(settings, "length_penalty_type", "huggingface") == "google",
        early_stopping=settings.early_stopping,
    )


def _draws_by_row(logits_processor: Any) -> bool:
    """Whether the last processor draws, with random numbers of each row's own."""
    return bool(logits_processor) and type(logits_processor[-1]) is SampledByRow


def _processor(logits_processor: Any) -> Processor | None:
    """All processors as one that may change scores in place; None where there are none."""
    parts = [_suppression(part) or part for part in logits_processor]

    def process(ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
        for part in parts:
            scores_RV = part(ids_RT, scores_RV)
        return scores_RV

    return process if parts else None


def _suppression(processor: Any) -> Processor | None:
    """Suppresses tokens in place where that does not depend on the tokens before: the library's copies all scores."""
    try:
        suppressed = _suppressed(processor)
    except AttributeError:  # It has other names in this version: it is asked itself.
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
    """The tokens, and the lengths from and below which they are suppressed; None for any other kind of processor."""
    endless = 1 << 62
    if type(processor) is transformers.MinLengthLogitsProcessor:
        return processor.eos_token_id, 0, processor.min_length
    if type(processor) is transformers.MinNewTokensLengthLogitsProcessor:
        return processor.eos_token_id, 0, processor.prompt_length_to_skip + processor.min_new_tokens
    if type(processor) is transformers.SuppressTokensLogitsProcessor:
        return processor.suppress_tokens, 0, endless
    if type(processor) is transformers.SuppressTokensAtBeginLogitsProcessor:
        return processor.begin_suppress_tokens, processor.begin_index, processor.begin_index + 1
    if type(processor) is transformers.NoBadWordsLogitsProcessor and all(map(_is_one, processor.sequence_bias)):
        return torch.tensor([word[0] for word in processor.sequence_bias]), 0, endless
    return None


def _is_one(word: Any) -> bool:
    return len(word) == 1


def padding_of(model: Any, settings: GenerationConfig) -> Any:
    """The token after the end of a hypothesis; None where there is neither padding nor an end."""
    padding = getattr(settings, "_pad_token_tensor", None)
    return model.config.pad_token_id if padding is None else int(padding)


def as_library_cache(model: Any, layers: list[tuple[torch.Tensor, ...]]) -> Any:
    """Keys and values of all tokens but the last, and of a source, from which `generate` can go on."""
    dtype = model.dtype
    own, source = DynamicCache(), DynamicCache()  # With a configuration, making one takes as long as a step.
    for parts in layers:
        for cache, pair in zip((own, source), (parts[:2], parts[2:]), strict=True):
            if pair:
                cache.layers.append(_filled_layer(*(part.to(dtype).contiguous() for part in pair)))
    if not model.config.is_encoder_decoder:
        return own
    library_cache = EncoderDecoderCache(own, source)
    library_cache.is_updated = dict.fromkeys(range(len(layers)), True)
    return library_cache


def _filled_layer(keys: torch.Tensor, values: torch.Tensor) -> DynamicLayer:
    """As its own `update` leaves it, which copies what it is given."""
    layer = DynamicLayer()
    layer.keys, layer.values = keys, values
    layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
    return layer


__all__ = [
    "SearchInputs",
    "as_library_cache",
    "encoded",
    "fast_beam_search",
    "fast_encoder_output",
    "fast_greedy_search",
    "inputs_of_rows",
    "unsupported_library",
    "unsupported_model",
    "unsupported_reason",
    "padding_of",
    "search_limits",
    "start_decoding",
]
