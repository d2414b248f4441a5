"""What training costs: floating-point operations as in Table 2, and memory."""

import resource
import sys

import numpy as np
import torch

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig


def training_flops(config: VanillaTransformerConfig, source_lengths: np.ndarray, target_lengths: np.ndarray) -> float:
    """Table 2: operations in the matrix products of one training pass over sentences of these lengths.

    A product of m×k and k×n counts 2mkn; the backward pass counts twice the forward. Padding does not count.
    """
    assert config.d_k is not None and config.d_v is not None
    s, t = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    query_and_key, value_and_output = (
        config.d_model * config.num_heads * config.d_k,
        (config.d_model * config.num_heads * config.d_v),
    )
    scores = config.num_heads * (config.d_k + config.d_v)
    feed_forward = 2 * config.d_model * config.d_ff
    self_attention = 2 * (query_and_key + value_and_output)
    encoder = s.sum() * (self_attention + feed_forward) + (s * s).sum() * scores
    decoder = t.sum() * (self_attention + feed_forward) + (t * t).sum() * scores
    cross = (s.sum() + t.sum()) * (query_and_key + value_and_output) + (s * t).sum() * scores
    output = t.sum() * config.d_model * config.vocab_size
    forward = 2 * (config.encoder_layers * encoder + config.decoder_layers * (decoder + cross) + output)
    return float(3 * forward)


def peak_memory(device: torch.device) -> int:
    """Most bytes that this process has held so far: of the device's memory, or of main memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def describe_device(device: torch.device, processes: int) -> str:
    """The kind and number of devices that a run computes on."""
    if device.type == "cuda":
        return f"{processes} × {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        return f"{processes * torch.get_num_threads()} CPU threads"
    return device.type
