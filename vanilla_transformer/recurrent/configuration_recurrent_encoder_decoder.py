"""Sizes and settings of the recurrent encoder-decoders that the paper replaced."""

import os
import re
from pathlib import Path
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.dynamic_module_utils import get_relative_import_files

from vanilla_transformer.model.configuration_vanilla_transformer import DerivingConfig, between

# An import of a file of the package's models, which is saved beside the files of this folder.
_IMPORTED = re.compile(r"^from vanilla_transformer\.model\.(\w+) import", re.MULTILINE)


@strict
class RecurrentEncoderDecoderConfig(DerivingConfig):
    """Sizes and settings of a recurrent encoder-decoder; the defaults are a small model of Luong et al. 2015.

    Args:
        vocab_size: Number of entries in the one vocabulary of source and target.
        d_model: Width of the embeddings, the decoder's states and the encoder's states (both directions together).
        num_layers: Recurrent layers in the encoder, and the same number in the decoder.
        cell: `lstm` (Sutskever et al. 2014) or `gru` (Cho et al. 2014).
        attention: `none`: the encoder's last states start the decoder, which sees nothing else of the source (2014);
            `bahdanau`: additive, with the previous step's state as the query (2015); `luong-dot`, `luong-general` or
            `luong-concat`: with this step's state as the query (Luong et al. 2015).
        input_feeding: Feeds the attentional state into the next step (Luong et al. 2015, section 3.3). With `bahdanau`
            the context is always fed; without attention there is nothing to feed.
        attention_window: D of Luong's predictive local attention (local-p): words further than D from the predicted
            position are ignored. None attends to the whole source.
        bidirectional: Whether the encoder reads the source in both directions, each with half of the width.
        dropout: On embeddings, between layers and on the output (Zaremba et al. 2014); never within the recurrence.
        label_smoothing: ε_ls of the training loss, as in the Transformer; the models of 2014 and 2015 had none.
        initializer_range: Weights are drawn uniformly between minus and plus this; by default √(10 / d_model), which
            is 0.1 at the width of Luong et al. (2015, section 4.1), 1,000. Narrow models barely learn from 0.1.
        tie_word_embeddings: One matrix for source, target and output; otherwise three.
    """

    model_type = "recurrent_encoder_decoder"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_layers",
    }

    vocab_size: int = between(1, 2**24, 37000)
    d_model: int = between(1, 2**16, 512)
    num_layers: int = between(1, 2**10, 2)
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["none", "bahdanau", "luong-dot", "luong-general", "luong-concat"] = "luong-general"
    input_feeding: bool = True
    attention_window: int | None = between(1, 2**24, None)
    bidirectional: bool = True
    dropout: float | int = between(0, 1, 0.2)
    label_smoothing: float | int = between(0, 1, 0.0)
    initializer_range: float | int | None = between(0, 100, None)
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: object) -> None:
        if self.bidirectional and self.d_model % 2:
            raise ValueError(f"Each direction has half of the width: d_model must be even, not {self.d_model}.")
        if self.attention_window is not None and not self.attention.startswith("luong"):
            raise ValueError(f"attention_window is Luong's: it cannot be combined with attention={self.attention!r}.")
        if self.initializer_range is None:
            self.initializer_range = (10 / self.d_model) ** 0.5
        super().__post_init__(**kwargs)

    def derived_fields(self) -> dict[str, object]:
        """Return the default range for the width."""
        return {"initializer_range": (10 / self.d_model) ** 0.5}

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does; the configuration of a model with the code that it names, in one folder."""
        super().save_pretrained(save_directory, *args, **kwargs)
        for name, code in saved_code().items() if getattr(self, "auto_map", None) else ():
            Path(save_directory, name).write_text(code, encoding="utf-8")


def saved_code() -> dict[str, str]:
    """Return the code that is saved with a recurrent model, by file name: this folder's files and what they import."""
    saved = {}
    for file in Path(__file__).parent.glob("*recurrent*.py"):
        code = file.read_text(encoding="utf-8")
        for name in _IMPORTED.findall(code):
            imported = Path(__file__).parents[1] / "model" / f"{name}.py"
            for needed in (imported, *map(Path, get_relative_import_files(imported))):
                saved[needed.name] = needed.read_text(encoding="utf-8")
        saved[file.name] = _IMPORTED.sub(r"from .\1 import", code)
    return saved
