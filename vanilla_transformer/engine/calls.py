"""A call of the engine: whether it runs a search that the library has prepared, and the search."""

from collections.abc import Callable, Collection, Iterator
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
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.generation import GenerateBeamDecoderOnlyOutput, GenerateBeamEncoderDecoderOutput
from transformers.utils import ModelOutput, logging

from vanilla_transformer.graph.settings import MAX_LENGTH_PENALTY, words

from .cpu import fitting_threads
from .known import unknown
from .search import (
    IMPOSSIBLE,
    BeamSearch,
    DecoderState,
    Hypotheses,
    Limits,
    Processor,
    greedy_search,
)
from .stacks import SearchDecoder

logger = logging.get_logger(__name__)

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
_UNSUPPORTED = (
    *("output_scores", "output_logits", "output_attentions", "output_hidden_states", "low_memory", "is_assistant"),
    "compile_config",
)
# Arguments that `generate` passes to a search: any other is unsupported unless it is None or False. `Seq2SeqTrainer`
# passes on labels, which change nothing.
_ARGUMENTS = words("attention_mask cache encoder_outputs labels logits_to_keep past_key_values position_ids use_cache")
# Processors that rule out the same tokens in all rows, with the lengths at which these change; the last one where its
# words have a single token.
_SUPPRESSING: dict[type, Callable[[Any], Collection[int]]] = {
    MinLengthLogitsProcessor: lambda of: {of.min_length},
    MinNewTokensLengthLogitsProcessor: lambda of: {of.prompt_length_to_skip + of.min_new_tokens},
    SuppressTokensAtBeginLogitsProcessor: lambda of: {of.begin_index, of.begin_index + 1},
    SuppressTokensLogitsProcessor: lambda of: (),
    NoBadWordsLogitsProcessor: lambda of: (),
}


class Call(NamedTuple):
    """The arguments of the library's searches, which it prepares and validates.

    A criterion of another class may give `limits` and `prompt_length`, the new tokens that each sentence may have.
    """

    model: Any
    prompts: torch.Tensor
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    settings: GenerationConfig
    kwargs: dict[str, Any]


def declined(call: Call) -> str | None:
    """Returns the first thing that the engine does not know in a model or a call, or None: the engine runs it."""
    of_models = map(unknown, getattr(call.model, "members", (call.model,)))
    found = chain(of_models, _of_settings(call), _of_parts(call), _of_arguments(call), _of_positions(call))
    return next((reason for reason in found if reason), None)


def decode(call: Call) -> torch.Tensor | ModelOutput | None:
    """Returns the result of the library's search for the same call, or None if the engine declines it.

    `sequences_scores` are always returned. The cache is not, because it belongs to hypotheses that were still running.
    """
    reason = declined(call)
    if reason is not None:
        logger.info_once(f"The library's own search is used, as the engine does not know {reason}.")
        return None
    width, sample = call.settings.num_beams or 1, call.settings.do_sample
    prompts_NP = call.prompts[::width].long()
    limits, process = _limits(call, prompts_NP), _processor(call.logits_processor)
    padding = call.settings.pad_token_id
    padding = _ends(call.settings)[0] if padding is None else padding  # As the library does.
    # Without torch's bookkeeping for gradients, small operations take three quarters of the time.
    device = call.model.device.type
    with torch.inference_mode(), fitting_threads(call.model, len(prompts_NP)), torch.autocast(device, enabled=False):
        state = _start(call, width)
        if width > 1:
            hypotheses = BeamSearch(state, prompts_NP, width, limits, process).run()
            if (hypotheses.scores[:, 0] <= IMPOSSIBLE).any():  # The library returns some that have not ended.
                return None
        else:
            tokens = greedy_search(state, prompts_NP, limits, padding, process, sample=bool(sample))
    return _beam_output(call, prompts_NP, hypotheses, padding) if width > 1 else tokens.clone()


def start_decoding(model: Any, encoder_outputs: Any, mask_NS: torch.Tensor | None) -> DecoderState:
    """Returns the state before the first token, from the encoder's output for the sources."""
    if hasattr(model, "start_decoding"):  # A model of another family, or an ensemble.
        state: DecoderState = model.start_decoding(encoder_outputs, mask_NS)
        return state
    return SearchDecoder(model, len(encoder_outputs[0]), mask_NS, encoder_outputs[0])


def _start(call: Call, width: int) -> DecoderState:
    """Returns the state before a call's first token; the library has repeated each source and prompt `width` times."""
    model, sources, mask = call.model, call.kwargs.get("encoder_outputs"), call.kwargs.get("attention_mask")
    mask_NS = None if mask is None else mask[::width]
    if sources is None:
        return SearchDecoder(model, len(call.prompts) // width, mask_NS)
    once = type(sources)(**{name: part[::width] for name, part in sources.items()})
    return start_decoding(model, once, mask_NS)


def _limits(call: Call, prompts_NP: torch.Tensor) -> Limits:
    """Returns when hypotheses and searches end, from the settings and all criteria."""
    settings, prompt_length, device = call.settings, prompts_NP.shape[1], prompts_NP.device
    longest: Any = settings.max_length - prompt_length
    lengths = torch.full((len(prompts_NP),), torch.iinfo(torch.long).max, device=device)
    end_tokens = []
    # A caller's criteria replace those made from the settings, or add to them.
    for criterion in call.stopping_criteria:
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
    # If scores never rise, the returned hypotheses are certain before all W have ended.
    certain = settings.early_stopping == "never" and all(map(_suppresses, call.logits_processor))
    exponent = 1.0 if settings.length_penalty is None else settings.length_penalty
    horizon = lengths if certain else torch.full_like(lengths, longest)
    return Limits(
        end_tokens=torch.cat(end_tokens),
        candidates=_candidates(settings),
        lengths=lengths,
        last_penalty=torch.tensor(
            [float(n) ** exponent for n in horizon.tolist()], dtype=torch.float32, device=device
        ),
        counted=settings.num_return_sequences if certain else settings.num_beams,
        length_penalty=exponent,
        early_stopping=settings.early_stopping,
    )


def _ends(settings: GenerationConfig) -> list[int]:
    ends: list[int] = torch.as_tensor(settings.eos_token_id).flatten().tolist()
    return ends


def _candidates(settings: GenerationConfig) -> int:
    """Returns the continuations that a step ranks: by the settings' end tokens, whatever else ends a hypothesis."""
    return max(2, 1 + len(_ends(settings))) * settings.num_beams


def _processor(given: LogitsProcessorList) -> Processor | None:
    """Combines all processors into one that may change scores in place; None if there are none."""
    parts = [_suppressed(part) if _suppresses(part) else part for part in given]

    def process(ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
        for part in parts:
            scores_RV = part(ids_RT, scores_RV)
        return scores_RV

    return process if parts else None


def _suppresses(processor: LogitsProcessor) -> bool:
    """Tells whether a processor rules out the same tokens in all rows, whatever was written."""
    words = getattr(processor, "sequence_bias", ()) if type(processor) is NoBadWordsLogitsProcessor else ()
    return type(processor) in _SUPPRESSING and all(len(word) == 1 for word in words)


def _suppressed(processor: LogitsProcessor) -> Processor:
    """Rules tokens out in place, as the processor does in one row: it copies all scores, and finds its tokens anew."""
    changes, biases = _SUPPRESSING[type(processor)](processor), dict[int, torch.Tensor]()

    def process(ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
        length = ids_RT.shape[1]
        since = max((change for change in changes if change <= length), default=0)
        if since not in biases:
            biases[since] = processor(ids_RT[:1], torch.zeros_like(scores_RV[:1]))
        return scores_RV.add_(biases[since])

    return process


def _beam_output(call: Call, prompts_NP: torch.Tensor, found: Hypotheses, padding: int) -> torch.Tensor | ModelOutput:
    width, returned = found.scores.shape[1], call.settings.num_return_sequences
    found = Hypotheses(*(part.clone() for part in found))  # Tensors of inference mode cannot be used in training.
    best = Hypotheses(*(part[:, :returned].flatten(0, 1) for part in found))
    longest = int(best.lengths.max())
    unused = torch.arange(longest, device=prompts_NP.device) >= best.lengths[:, None]
    tokens = best.paths[:, 0, :longest].masked_fill(unused, padding)
    sequences: Any = torch.cat((prompts_NP.repeat_interleave(returned, 0), tokens), 1)
    if not call.settings.return_dict_in_generate:
        return sequences
    first_rows = width * torch.arange(len(prompts_NP), device=prompts_NP.device).repeat_interleave(returned)
    parents: Any = (best.paths[:, 1, :longest] + first_rows[:, None]).masked_fill(unused, -1).to(torch.int32)
    is_encoder_decoder = call.model.config.is_encoder_decoder
    output = GenerateBeamEncoderDecoderOutput if is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return output(sequences=sequences, sequences_scores=best.scores, beam_indices=parents)


def _of_settings(call: Call) -> Iterator[str]:
    settings: Any = call.settings
    if settings.do_sample and settings.num_beams > 1:
        yield "do_sample=True with beams"
    for name in _UNSUPPORTED:
        if getattr(settings, name, None):
            yield f"{name}={getattr(settings, name)!r}"
    if settings.cache_implementation not in (None, "dynamic"):
        yield f"cache_implementation={settings.cache_implementation!r}"
    if not settings.use_cache:
        yield "use_cache=False"
    for name, minimum in (("max_length", 0), ("num_return_sequences", 1)):
        value = getattr(settings, name)
        # The library fails at these.
        if not isinstance(value, Integral) or value < minimum:
            yield f"{name}={value}"
    if not abs(settings.length_penalty or 0.0) <= MAX_LENGTH_PENALTY:
        yield f"length_penalty={settings.length_penalty}"
    if settings.num_beams == 1 and settings.return_dict_in_generate:
        yield "a dictionary with the cache of a search without a beam"
    vocabulary = call.model.config.vocab_size
    if settings.eos_token_id is None:
        yield "no eos_token_id"
    elif settings.num_beams > 1 and _candidates(settings) > vocabulary:
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
        if name not in _ARGUMENTS and value is not None and value is not False:
            yield name
    # transformers 5.24 renamed the cache.
    cache = call.kwargs.get("cache", call.kwargs.get("past_key_values"))
    made_here = EncoderDecoderCache if call.model.config.is_encoder_decoder else DynamicCache
    if cache is not None and not (type(cache) is made_here and cache.get_seq_length() == 0):
        yield "a cache from before the call"


def _of_positions(call: Call) -> Iterator[str]:
    """Refuses explicit positions, except those of a decoder-only model that count its tokens."""
    positions, prompts, mask = call.kwargs.get("position_ids"), call.prompts, call.kwargs.get("attention_mask")
    expected: torch.Tensor | None = None
    if not call.model.config.is_encoder_decoder:
        mask = torch.ones_like(prompts) if mask is None else mask.to(prompts.device).long()
        if not prompts.shape[1]:
            yield "prompts without a token"
        if mask.shape != prompts.shape or not bool(mask.diff(dim=1).ge(0).all()):
            yield "padding after a prompt's beginning"
        expected = (mask.cumsum(1) - 1).clamp(min=0)
    if positions is not None and (expected is None or not bool((positions.to(prompts.device) == expected).all())):
        yield "position_ids"
