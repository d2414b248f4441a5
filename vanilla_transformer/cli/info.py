"""`vanilla-transformer info`: sizes of a preset or a model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag, OptionalInt, UsageError, at_least_one

if TYPE_CHECKING:
    from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig

_SIZES = "vocab_size", "d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers"


@dataclass(frozen=True)
class Info:
    """Show the sizes of a preset or of a model, without loading its weights."""

    model: Annotated[str, Positional, arg(metavar="PRESET|MODEL")]
    """Name of a preset (tiny, small, base, big, or a row of Table 3), or directory or Hub id of a model."""
    vocab_size: OptionalInt = None
    """Types in the vocabulary of a preset (default: 37,000 as in section 5.1)."""
    json: Flag = False
    """Print one JSON object."""

    def run(self) -> None:
        """Prints the sizes, and the number of parameters of each part."""
        config = self._config()
        sizes = {name: getattr(config, name) for name in _SIZES}
        parameters = count_parameters(config)
        if self.json:
            print(json.dumps({"model": self.model, "sizes": sizes, "parameters": parameters}))
            return
        for name, value in sizes.items():
            print(f"{name:<24}{value:>12,}")
        for name, value in parameters.items():
            print(f"{'parameters, ' + name:<24}{value:>12,}")

    def _config(self) -> "VanillaTransformerConfig":
        from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
        from vanilla_transformer.translation import load_config

        at_least_one(vocab_size=self.vocab_size)
        if not Path(self.model).is_dir() and "/" not in self.model:
            sizes = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
            return VanillaTransformerConfig.from_preset(self.model, **sizes)
        if self.vocab_size is not None:
            raise UsageError("--vocab-size is for presets: a model has its own vocabulary.")
        return load_config(self.model)


def count_parameters(config: "VanillaTransformerConfig") -> dict[str, int]:
    """Parameters of the embedding (with the output's matrix and learned positions), of the two stacks, and of all."""
    import torch

    from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
    counts = {"embedding": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        stack = "decoder" if name.startswith("model.decoder.") else "encoder"
        counts[stack if ".layers." in name else "embedding"] += parameter.numel()
    return {**counts, "total": sum(counts.values())}
