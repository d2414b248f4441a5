"""`vanilla-transformer info`: size and cost of a preset or a model, compared with the paper."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vanilla_transformer.cli.arguments import Flag
from vanilla_transformer.cli.files import write_whole
from vanilla_transformer.options import OptionalCount

_SIZES = (
    *("vocab_size", "d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers"),
    *("dropout", "label_smoothing", "positional_encoding"),
    # Only recurrent models have these.
    *("num_layers", "cell", "attention", "attention_window", "input_feeding", "bidirectional"),
)


@dataclass(frozen=True)
class Info:
    """Show the parameters and the training FLOPs of a preset or a model, compared with the paper.

    If MODEL is a directory with weights, the command also checks that they can be loaded.
    """

    #: Preset (tiny, small, base, big, or a row of Table 3), model directory or Hub id.
    model: Annotated[str, Positional, arg(metavar="PRESET|MODEL")]
    #: Vocabulary size (default: the model's; for a preset 37,000, as in section 5.1).
    vocab_size: OptionalCount = None
    #: Print the result as one JSON object.
    json: Flag = False

    def run(self) -> None:
        """Prints the sizes, the training cost, and why the paper's numbers differ."""
        from vanilla_transformer.inspection.sizes import (
            MILLIONS_OF_PARAMETERS,
            count_parameters,
            info_page,
            training_cost,
        )
        from vanilla_transformer.loading.models import load_config
        from vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig

        is_preset = not Path(self.model).is_dir() and "/" not in self.model
        config = VanillaTransformerConfig.from_preset(self.model) if is_preset else load_config(self.model)
        if self.vocab_size is not None:
            config.vocab_size = self.vocab_size
        report = {
            "model": self.model,
            "sizes": {name: getattr(config, name) for name in _SIZES if hasattr(config, name)},
            "parameters": count_parameters(config),
            "table_3_millions": MILLIONS_OF_PARAMETERS.get(self.model) if is_preset else None,
            "training": training_cost(config, self.model if is_preset else None),
        }
        write_whole(None, [json.dumps(report)] if self.json else info_page(report))
