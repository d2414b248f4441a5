"""The library's searches, run by the engine: on live weights, or inside `frozen` on the weights it holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer
from transformers.generation import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from .cpu import computing_dtype
from .decoder import Decoder, DecoderCache
from .encoder import Encoder
from .frozen import Frozen, opened
from .known import unknown
from .linear import Weights, unsupported_quantization
from .requests import Request, processor
from .search import BeamSearch, Decoding, Hypotheses, Limits, greedy_search, likeliest, sampled

logger = logging.get_logger(__name__)
_AS_DICT = "return_dict_in_generate"


def decode(request: Request) -> Any:
    """Returns the result of the library's search for the same request, or None if the engine declines it.

    `sequences_scores` are always returned; a beam returns no `past_key_values`: the library's belong to hypotheses
    that were still running.

    Raises:
        ValueError: 8-bit weights are requested together with something that the engine declines.
    """
    reason = declined(request)
    if reason is not None:
        if request.quantization is not None:
            raise ValueError(
                f"quantization={request.quantization!r} cannot be combined with {reason}: leave one of them out."
            )
        logger.info_once(f"The library's own search is used, as the engine does not know {reason}.")
        return None
    if request.settings.num_beams == 1:
        return _greedy_search(request)
    return _beam_search(request)


def encode(
    model: Any, inputs: torch.Tensor, name: str, quantization: str | None, arguments: dict[str, Any]
) -> BaseModelOutput | None:
    """Returns the encoder's output of `inputs`, `name` in `generate`; None where the model has to encode.

    It has to where weights would be converted for this alone, and wherever the engine does not know the model.
    """
    frozen, mask = opened(model), arguments.get("attention_mask")
    others = {key for key, value in arguments.items() if value is not None and not key.startswith("decoder_")}
    if (
        decodes_itself(model)
        or name not in ("input_ids", "inputs_embeds")
        or not others <= {"attention_mask", "encoder_outputs", "labels", "use_cache", "past_key_values", name}
        or (mask is not None and not bool(mask.any(-1).all()))
        or unsupported_quantization(quantization, model.device) is not None
        or (frozen is None and (torch.is_autocast_enabled(model.device.type) or _dtype(model) != model.dtype))
        or (frozen is None and unknown(model) is not None)
    ):
        return None
    asked = {name: inputs, "attention_mask": mask}
    if frozen is not None:
        return BaseModelOutput(last_hidden_state=frozen.encode(asked, quantization))
    with torch.autocast(model.device.type, enabled=False), torch.no_grad():
        return BaseModelOutput(last_hidden_state=Encoder(model, Weights(model.dtype))(**asked))


def decodes_itself(model: Any) -> bool:
    """Tells whether a model has a `start_decoding` of its own: one of another family, or an ensemble."""
    return hasattr(model, "start_decoding")


def start_decoding(
    model: Any, encoder_outputs: Any, mask_NS: torch.Tensor | None, quantization: str | None
) -> Decoding:
    """Returns the decoding before the first token, from the encoder's output for the sources."""
    if decodes_itself(model):
        return model.start_decoding(encoder_outputs, mask_NS, quantization)
    return _decoder(model, quantization).start(encoder_outputs[0], mask_NS)


def declined(request: Request) -> str | None:
    """Describes the first thing the engine does not know in a call, its model or one of the model's `members`."""
    reason = request.unsupported()
    for model in getattr(request.model, "members", (request.model,)):
        if reason is None and request.quantization is not None and decodes_itself(model):
            reason = f"a {type(model).__name__}, which has no 8-bit weights"
        if reason is None and opened(model) is None:
            reason = unknown(model)
    return reason


def _decoder(model: Any, quantization: str | None) -> Decoder:
    """Returns the decoder for one call, in the type in which the library's search would compute."""
    frozen = opened(model)
    dtype = _dtype(model)
    if frozen is None and (quantization is not None or dtype != model.dtype):
        frozen = Frozen(model, quantization)  # Held for this call only.
    return Decoder(model, Weights(dtype)) if frozen is None else frozen.decoder(dtype, quantization)


def _dtype(model: Any) -> torch.dtype:
    device = model.device.type
    autocast = torch.is_autocast_enabled(device)
    return computing_dtype(torch.get_autocast_dtype(device) if autocast else model.dtype, model.device)


@contextmanager
def _decoding(request: Request, width: int) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yields the sentences' prompts, (N, P), and their decoding; the library repeats each `width` times."""
    model, kwargs = request.model, request.kwargs
    prompts_NP, mask = request.prompts[::width], kwargs.get("attention_mask")
    mask_NS = None if mask is None else mask[::width]
    # Without torch's bookkeeping for gradients, small operations take three quarters of the time.
    with torch.autocast(model.device.type, enabled=False), torch.inference_mode():
        if not model.config.is_encoder_decoder:
            yield prompts_NP, _decoder(model, request.quantization).start_without_source(len(prompts_NP), mask_NS)
            return
        encoded = kwargs["encoder_outputs"]
        once = type(encoded)(**{name: part[::width] for name, part in encoded.items()})
        yield prompts_NP, start_decoding(model, once, mask_NS, request.quantization)


def _beam_search(request: Request) -> Any:
    settings = request.settings
    width, returned = settings.num_beams, settings.num_return_sequences
    assert width is not None and returned is not None
    process = processor(request.logits_processor)
    with _decoding(request, width) as (prompts_NP, decoding):
        found = BeamSearch(decoding, prompts_NP, width, request.limits(prompts_NP), process).run()
    return _beam_output(
        request.model, prompts_NP, found, returned, request.padding(), settings.return_dict_in_generate
    )


def _beam_output(
    model: Any, prompts_NP: torch.Tensor, found: Hypotheses, returned: int, padding: Any, as_dict: bool | None
) -> Any:
    width = found.scores.shape[1]
    found = Hypotheses(*(part.clone() for part in found))  # Tensors of inference mode cannot be used in training.
    best = Hypotheses(*(part[:, :returned].flatten(0, 1) for part in found))
    longest = int(best.lengths.max())
    unused = torch.arange(longest, device=prompts_NP.device) >= best.lengths[:, None]
    tokens = best.paths[:, 0, :longest].masked_fill(unused, padding)
    sequences: Any = torch.cat((prompts_NP.repeat_interleave(returned, 0), tokens), 1)
    if not as_dict:
        return sequences
    first_rows = width * torch.arange(len(prompts_NP), device=prompts_NP.device).repeat_interleave(returned)
    parents: Any = (best.paths[:, 1, :longest] + first_rows[:, None]).masked_fill(unused, -1).to(torch.int32)
    output = GenerateBeamEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateBeamDecoderOnlyOutput
    return output(sequences=sequences, sequences_scores=best.scores, beam_indices=parents)


def _greedy_search(request: Request) -> Any:
    """Runs greedy search or sampling.

    Sampling with torch's generator also draws for finished sentences, as the library does, so that one seed draws the
    same tokens.
    """
    settings = request.settings
    as_dict = bool(settings.return_dict_in_generate)
    with _decoding(request, 1) as (prompts_NP, decoding):
        sequences = greedy_search(
            decoding,
            prompts_NP,
            request.limits(prompts_NP),
            request.padding(),
            processor(request.logits_processor),
            sampled if settings.do_sample else likeliest,
            may_drop_finished=not (as_dict or settings.do_sample),
        )
    return _greedy_output(request.model, sequences, decoding, as_dict)


def _greedy_output(model: Any, sequences: Any, decoding: Any, as_dict: bool) -> Any:
    sequences = sequences.clone()
    if not as_dict:
        return sequences
    output = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    if isinstance(decoding, DecoderCache):
        return output(sequences=sequences, past_key_values=_library_cache(model, decoding.keys_and_values()))
    return output(sequences=sequences, past_key_values=getattr(decoding, "state", None))


def answer(
    model: Any, ids_NS: torch.Tensor, mask_NS: torch.Tensor, lengths_N: torch.Tensor, setting: Callable[[str], Any]
) -> Any:
    """Returns the result of a plain call inside `frozen`, or None if the library has to prepare it.

    Args:
        model: An encoder-decoder.
        ids_NS: Sources.
        mask_NS: 1 on tokens, 0 on padding.
        lengths_N: New tokens allowed for the hypotheses of each sentence.
        setting: Returns the effective value of a `GenerationConfig` setting. Settings not requested here are unset.
    """
    frozen = opened(model)
    start, end, padding = (setting(f"{name}_token_id") for name in ("decoder_start", "eos", "pad"))
    width, returned = setting("num_beams"), setting("num_return_sequences") or 1
    ends = end if isinstance(end, list) else [end]
    candidates = max(2, 1 + len(ends)) * width
    if (
        frozen is None
        or decodes_itself(model)
        or not all(type(part) is torch.Tensor and part.dim() == 2 for part in (ids_NS, mask_NS))
        or not ids_NS.device.type == mask_NS.device.type == "cpu" == model.device.type
        or ids_NS.shape != mask_NS.shape
        or not all(type(token) is int for token in (start, padding, *ends))
        or setting("use_cache") is False
        or not 1 <= returned <= width
        or (width > 1 and candidates > model.config.vocab_size)
        or not bool(mask_NS.any(-1).all())
    ):
        return None
    quantization = frozen.quantization or setting("quantization")
    if unsupported_quantization(quantization, model.device) is not None:
        return None
    early, penalty, as_dict = setting("early_stopping") or False, setting("length_penalty"), setting(_AS_DICT)
    certain, lengths_N = early == "never", lengths_N.clamp(min=1)
    limits = Limits(
        end_tokens=torch.tensor(ends),
        candidates=candidates,
        lengths=lengths_N,
        horizon=lengths_N if certain else lengths_N.amax().expand_as(lengths_N),
        counted=returned if certain else width,
        length_penalty=1.0 if penalty is None else penalty,
        early_stopping=early,
    )
    prompts_N1 = torch.full((len(ids_NS), 1), start)
    search = frozen.search(_dtype(model), quantization, len(ids_NS) * width)
    if search is not None and width == 1 and not as_dict:
        tokens_NT, counts_N = search.greedy(ids_NS, mask_NS, start, limits)
        unused = torch.arange(tokens_NT.shape[1]) >= counts_N[:, None]
        return torch.cat((prompts_N1, tokens_NT.masked_fill(unused, padding)), 1)
    if search is not None and width > 1:
        hypotheses = search.beam(ids_NS, mask_NS, start, limits, width)
        return _beam_output(model, prompts_N1, hypotheses, returned, padding, as_dict)
    with torch.inference_mode():
        encoded_NSD = frozen.encode({"input_ids": ids_NS, "attention_mask": mask_NS}, quantization)
        with torch.autocast("cpu", enabled=False):
            decoding = frozen.decoder(_dtype(model), quantization).start(encoded_NSD, mask_NS)
            found: Any
            if width == 1:
                found = greedy_search(decoding, prompts_N1, limits, padding, may_drop_finished=not as_dict)
            else:
                found = BeamSearch(decoding, prompts_N1, width, limits).run()
    if width == 1:
        return _greedy_output(model, found, decoding, as_dict)
    return _beam_output(model, prompts_N1, found, returned, padding, as_dict)


def _library_cache(model: Any, layers: list[tuple[torch.Tensor, ...]]) -> Any:
    """Returns keys and values of the source and all tokens but the last, so that `generate` can continue."""
    own, source = DynamicCache(), DynamicCache()  # Giving it a configuration would take as long as a step.
    for parts in layers:
        for cache, pair in zip((own, source), (parts[:2], parts[2:]), strict=True):
            if pair:
                keys, values = (part.to(model.dtype).clone() for part in pair)
                layer = DynamicLayer()  # Set directly: the layer's own `update` would copy its arguments.
                layer.keys, layer.values = keys, values
                layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
                cache.layers.append(layer)
    if not model.config.is_encoder_decoder:
        return own
    library_cache = EncoderDecoderCache(own, source)
    library_cache.is_updated = dict.fromkeys(range(len(layers)), True)
    return library_cache
