"""Parameters of a model by part."""

import re

import torch

from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerBaseConfig
from vanilla_transformer.recurrent.configuration_recurrent_encoder_decoder import RecurrentEncoderDecoderConfig
from vanilla_transformer.registration import model_class

OwnConfig = VanillaTransformerBaseConfig | RecurrentEncoderDecoderConfig
# The part of each parameter, by its name: the first that is found in it. All others are embeddings.
_PARTS = {
    r"positional_encoding": "positions",
    r"^classifier": "classifier",
    r"(encoder|decoder)\.layers\.\d+\.(self_attention|cross_attention|feed_forward)\.": r"\1_\2",
    r"(encoder|decoder)\.layers\.": r"\1_norms",
    r"(encoder|decoder)\.rnn": r"\1_recurrence",
    r"decoder\.attention": "attention",
    r"decoder\.start": "start_of_the_decoder",
    r"decoder\.readout": "readout",
}


def count_parameters(config: OwnConfig) -> dict[str, int]:
    """Counts the parameters of each part, and their sum as `total`; recurrent models have parts of their own.

    `embedding` is the matrix shared by input and output, or all embeddings if they share none; `positions` are learned
    positions; `classifier` is the head of a classifier. All others belong to the layers of a stack:
    `encoder_feed_forward`, `decoder_norms` and so on.
    """
    with torch.device("meta"):
        model = model_class(config)(config)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        # A model of one stack does not name the stack.
        name = re.sub(
            r"^model\.layers", "encoder.layers" if hasattr(config, "encoder_layers") else "decoder.layers", name
        )
        found = ((re.search(pattern, name), part) for pattern, part in _PARTS.items())
        part = next((match.expand(part) for match, part in found if match), "embedding")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return {**counts, "total": sum(counts.values())}
