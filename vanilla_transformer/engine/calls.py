"""The engine's one entry: a search that the library has prepared, on live weights or on those that a block holds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    PreTrainedModel,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.generation import GenerateBeamDecoderOnlyOutput, GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput, logging

from .cpu import computing_dtype, fitting_threads
from .decoder import Decoder
from .encoder import Encoder
from .frozen import Frozen, opened, refusal
from .gate import Call, declined, decodes_itself
from .linear import Weights
from .search import BeamSearch, Decoding, Hypotheses, Limits, Processor, greedy_search, likeliest, sampled

logger = logging.get_logger(__name__)

# Processors that rule out the same tokens in all rows; the last one where its words have a single token.
_SUPPRESSING = (
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    NoBadWordsLogitsProcessor,
)


@dataclass
class Unencoded(ModelOutput):
    """Sources in the place of the encoder's output: encoded once it is decided who decodes.

    Attributes:
        inputs: Token ids or embeddings, which `generate` repeats for each hypothesis.
    """

    inputs: torch.Tensor | None = None

    def remember(self, name: str, by_library: Callable[[], ModelOutput]) -> "Unencoded":
        """Notes the inputs before they are repeated, their name, and what encodes them as the library does."""
        assert self.inputs is not None
        self.name, self.by_library = name, by_library
        self.once: torch.Tensor = self.inputs
        return self

    def encoded(self, rows: int) -> ModelOutput:
        """Returns the output of the library's encoding, repeated to the number of rows."""
        output = self.by_library()
        for name, part in output.items():
            if isinstance(part, torch.Tensor):
                output[name] = part.repeat_interleave(rows // len(part), 0)
        return output


def decode(call: Call) -> Any:
    """Returns the result of the library's search for the same call, or None if the engine declines it.

    `sequences_scores` are always returned, and no `past_key_values`: the library's belong to hypotheses that were
    still running.

    Raises:
        ValueError: 8-bit weights are requested together with something that the engine declines.
    """
    reason = declined(call)
    if reason is not None:
        if call.quantization is not None:
            raise refusal(call.quantization, reason)
        logger.info_once(f"The library's own search is used, as the engine does not know {reason}.")
        return None
    width, sample = call.settings.num_beams or 1, call.settings.do_sample
    prompts_NP = call.prompts[::width]
    limits, process = _limits(call, prompts_NP), _processor(call.logits_processor)
    # Without torch's bookkeeping for gradients, small operations take three quarters of the time.
    with torch.inference_mode(), fitting_threads(call.model, len(prompts_NP)):
        decoding = _start(call, width)
        with torch.autocast(call.model.device.type, enabled=False):
            if width > 1:
                hypotheses = BeamSearch(decoding, prompts_NP, width, limits, process).run()
            else:
                # Sampling with torch's generator also draws for finished sentences, as the library does, so that one
                # seed draws the same tokens.
                choose = sampled if sample else likeliest
                tokens = greedy_search(
                    decoding, prompts_NP, limits, _padding(call), process, choose, may_drop_finished=not sample
                )
    return _beam_output(call, prompts_NP, hypotheses) if width > 1 else tokens.clone()


def encode(
    model: Any, inputs: dict[str, Any], quantization: str | None, by_library: Callable[[], ModelOutput]
) -> ModelOutput:
    """Returns the encoder's output of `input_ids` or `inputs_embeds`, and `attention_mask`.

    Outside a block the model itself encodes where weights would be converted for this alone.
    """
    frozen, device = opened(model), model.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else model.dtype
    if decodes_itself(model) or (frozen is None and (autocast or computing_dtype(dtype, model.device) != dtype)):
        return by_library()
    with torch.autocast(device, enabled=False), torch.no_grad():
        encoder = Encoder(model, Weights(dtype)) if frozen is None else frozen.encoder(dtype, quantization)
        return BaseModelOutput(last_hidden_state=encoder(**inputs).to(dtype))


def start_decoding(
    model: Any, encoder_outputs: Any, mask_NS: torch.Tensor | None, quantization: str | None
) -> Decoding:
    """Returns the decoding before the first token, from the encoder's output for the sources."""
    if decodes_itself(model):
        return model.start_decoding(encoder_outputs, mask_NS, quantization)
    return _decoder(model, quantization).start(encoder_outputs[0], mask_NS)


def _start(call: Call, width: int) -> Any:
    """Returns the decoding of a call; the library has repeated each source and prompt `width` times."""
    model, sources, mask = call.model, call.kwargs.get("encoder_outputs"), call.kwargs.get("attention_mask")
    mask_NS = None if mask is None else mask[::width]
    if isinstance(sources, Unencoded):
        samples = len(call.prompts) // width // len(sources.once)
        inputs = {sources.name: sources.once, "attention_mask": None if mask_NS is None else mask_NS[::samples]}
        once = encode(model, inputs, call.quantization, sources.by_library)
        once = BaseModelOutput(last_hidden_state=once[0].repeat_interleave(samples, 0))
    elif sources is not None:
        once = type(sources)(**{name: part[::width] for name, part in sources.items()})
    with torch.autocast(model.device.type, enabled=False):
        if sources is None:
            prompts_NP = call.prompts[::width]
            return _decoder(model, call.quantization).start_without_source(len(prompts_NP), mask_NS)
        return start_decoding(model, once, mask_NS, call.quantization)


def _decoder(model: PreTrainedModel, quantization: str | None) -> Decoder:
    """Returns the decoder for one call, in the type in which the library's search would compute."""
    frozen = opened(model)
    dtype = computing_dtype(model.dtype, model.device)
    if frozen is None and (quantization is not None or dtype != model.dtype):
        frozen = Frozen(model, quantization)  # Held for this call only.
    return Decoder(model, Weights(dtype)) if frozen is None else frozen.decoder(dtype, quantization)


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
    # The library ranks as many candidates as the settings' end tokens require, whatever else ends a hypothesis.
    known_ends: Any = settings._eos_token_tensor
    # If scores never rise, the returned hypotheses are certain before all W have ended.
    certain = settings.early_stopping == "never" and all(map(_suppresses, call.logits_processor))
    return Limits(
        end_tokens=torch.cat(end_tokens),
        candidates=max(2, 1 + len(known_ends)) * settings.num_beams,
        lengths=lengths,
        horizon=lengths if certain else torch.full_like(lengths, longest),
        counted=settings.num_return_sequences if certain else settings.num_beams,
        length_penalty=1.0 if settings.length_penalty is None else settings.length_penalty,
        early_stopping=settings.early_stopping,
    )


def _padding(call: Call) -> Any:
    """Returns the token after the end of a hypothesis; None without padding and end."""
    padding: Any = call.settings._pad_token_tensor
    return call.model.config.pad_token_id if padding is None else int(padding)


def _processor(parts: Any) -> Processor | None:
    """Combines all processors into one that may change scores in place; None if there are none."""
    parts = [partial(_suppressed, part) if _suppresses(part) else part for part in parts]

    def process(ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
        for part in parts:
            scores_RV = part(ids_RT, scores_RV)
        return scores_RV

    return process if parts else None


def _suppresses(processor: object) -> bool:
    """Tells whether a processor rules out the same tokens in all rows, whatever was written."""
    words = getattr(processor, "sequence_bias", ()) if type(processor) is NoBadWordsLogitsProcessor else ()
    return type(processor) in _SUPPRESSING and all(len(word) == 1 for word in words)


def _suppressed(processor: Any, ids_RT: torch.Tensor, scores_RV: torch.Tensor) -> torch.Tensor:
    """Rules tokens out in place, as the processor does in one row: it copies all scores."""
    return scores_RV.add_(processor(ids_RT[:1], torch.zeros_like(scores_RV[:1])))


def _beam_output(call: Call, prompts_NP: torch.Tensor, found: Hypotheses) -> Any:
    width, returned = found.scores.shape[1], call.settings.num_return_sequences
    found = Hypotheses(*(part.clone() for part in found))  # Tensors of inference mode cannot be used in training.
    best = Hypotheses(*(part[:, :returned].flatten(0, 1) for part in found))
    longest = int(best.lengths.max())
    unused = torch.arange(longest, device=prompts_NP.device) >= best.lengths[:, None]
    tokens = best.paths[:, 0, :longest].masked_fill(unused, _padding(call))
    sequences: Any = torch.cat((prompts_NP.repeat_interleave(returned, 0), tokens), 1)
    if not call.settings.return_dict_in_generate:
        return sequences
    first_rows = width * torch.arange(len(prompts_NP), device=prompts_NP.device).repeat_interleave(returned)
    parents: Any = (best.paths[:, 1, :longest] + first_rows[:, None]).masked_fill(unused, -1).to(torch.int32)
    is_encoder_decoder = call.model.config.is_encoder_decoder
    output = GenerateBeamEncoderDecoderOutput if is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return output(sequences=sequences, sequences_scores=best.scores, beam_indices=parents)
