"""Searches for calls whose meaning is known (`call_plans`): without the library, one sentence in one session."""

from typing import Any, NamedTuple

import torch
from transformers import StoppingCriteriaList
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from .call_plans import PlannedCall, Prepared
from .cpu import computing_dtype
from .fast_generation import (
    SearchInputs,
    as_library_cache,
    encoded,
    fast_beam_search,
    fast_greedy_search,
    padding_of,
    search_limits,
)
from .onnx_search import CopiedSentenceSearch, SentenceSearch, inputs_of_search
from .onnx_sessions import decoder_size, decodes_in_session, encoder_size, encodes_in_session, few_enough
from .packed_copies import has_fixed_weights, packed
from .packed_decoder import PackedDecoder
from .packed_encoder import PackedEncoder
from .search import SourceLengthLimit

# Numbers of a decoder up to which a beam's few rows are multiplied fast enough with weights where they are.
LARGEST_BEAM_DECODER = 3 << 20


def planned_search(model: Any, planned: PlannedCall) -> Any:
    """What `generate` returns."""
    found = sentence_search(model, planned)
    if found is not None:
        return found
    prepared, weights = planned.plan.by_length[planned.longest], planned.plan.structure.packed
    settings, ids_NS, mask_NS = prepared.settings, planned.call.ids_NS, planned.call.mask_NS
    arguments = {"input_ids": ids_NS, "attention_mask": mask_NS}
    encoded_NSD = encoded(model, settings, arguments, weights[PackedEncoder])
    prompts_N1 = torch.full((len(ids_NS), 1), prepared.start)
    inputs = SearchInputs(prompts_N1, encoded_NSD, mask_NS, weights[PackedDecoder])
    search = fast_beam_search if settings.num_beams > 1 else fast_greedy_search
    return search(model, inputs, prepared.logits_processor, _criteria(prepared, planned.limits), settings)


def _criteria(prepared: Prepared, limits: torch.Tensor | None) -> StoppingCriteriaList:
    if limits is None:
        return prepared.stopping_criteria
    return StoppingCriteriaList([*prepared.stopping_criteria, SourceLengthLimit(limits, 1)])


class _SentenceCall(NamedTuple):
    """What is the same for all sentences of a call's meaning; `longest` is of hypotheses."""

    longest: int
    inputs: dict[str, Any]
    padding: Any
    vocabulary: int
    encoder_size: int
    decoder_size: int


def sentence_search(model: Any, planned: PlannedCall) -> Any:
    """What `generate` returns for one sentence without padding, found in one session; None where that cannot be."""
    call, plan, _, longest = planned
    if call.sentence is None:
        return None
    if longest not in plan.of_sentence:
        plan.of_sentence[longest] = _sentence_call(model, planned)
    known = plan.of_sentence[longest]
    if known is None or min(call.sentence) < 0 or max(call.sentence) >= known.vocabulary:
        return None
    settings, start = plan.by_length[longest].settings, plan.by_length[longest].start
    width = settings.num_beams
    if not few_enough(known.encoder_size, len(call.sentence)) or not few_enough(known.decoder_size, width):
        return None
    copied = width > 1 and has_fixed_weights(model)
    if width > 1 and not copied and known.decoder_size > LARGEST_BEAM_DECODER:
        return None
    if copied:
        search = packed(model, CopiedSentenceSearch, torch.float32, None, plan.structure.weights)
    else:
        search = plan.structure.reading_in_place(SentenceSearch, model)
    inputs = known.inputs | search.inputs_of_sentence(call.ids_NS, known.longest)
    sequences: Any
    if width == 1:
        tokens, layers = search.greedy_search(inputs, with_cache=settings.return_dict_in_generate)
        sequences = torch.tensor([[start, *tokens]])
        if not settings.return_dict_in_generate:
            return sequences
        return GenerateEncoderDecoderOutput(sequences=sequences, past_key_values=as_library_cache(model, layers))
    found = search.beam_search(inputs, settings.num_return_sequences)
    written = max(len(one.tokens) for one in found)
    sequences = torch.tensor([[start, *one.tokens, *[known.padding] * (written - len(one.tokens))] for one in found])
    if not settings.return_dict_in_generate:
        return sequences
    parents: Any = torch.tensor(
        [one.parents + [-1] * (written - len(one.parents)) for one in found], dtype=torch.int32
    )
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=torch.tensor([one.score for one in found]),
        beam_indices=parents,
    )


def _sentence_call(model: Any, planned: PlannedCall) -> _SentenceCall | None:
    """What one session needs for each sentence of such a call; None where it does not do all that is asked for."""
    prepared, config = planned.plan.by_length[planned.longest], model.config
    settings, dtype = prepared.settings, computing_dtype(model.dtype, model.device)
    if settings.do_sample or prepared.logits_processor or getattr(settings, "quantization", None) is not None:
        return None
    if not encodes_in_session(model, dtype, None, 1) or not decodes_in_session(model, dtype, None, 1):
        return None
    if not planned.plan.structure.has_plain_weights():
        return None
    start_11 = torch.tensor([[prepared.start]])
    limits = search_limits(start_11, _criteria(prepared, planned.limits), settings, [])
    longest = int(limits.lengths)
    if config.positional_encoding == "learned" and longest > config.max_position_embeddings:
        return None
    inputs = inputs_of_search(config.vocab_size, prepared.start, limits, settings.num_beams)
    sizes = config.vocab_size, encoder_size(model), decoder_size(model)
    return _SentenceCall(longest, inputs, padding_of(model, settings), *sizes)


__all__ = ["planned_search", "sentence_search"]
