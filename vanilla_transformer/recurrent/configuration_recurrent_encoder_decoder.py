"""Sizes and settings of the recurrent encoder-decoders that the paper replaced."""

import math
import os
from typing import Any

from transformers import PreTrainedConfig

from .recurrent_code import save_code

CELLS = ("lstm", "gru")
ATTENTIONS = ("none", "bahdanau", "luong-dot", "luong-general", "luong-concat")
_LARGEST = {"vocab_size": 2**24, "d_model": 2**16, "num_layers": 2**10, "attention_window": 2**24}
_SWITCHES = ("bidirectional", "input_feeding", "tie_word_embeddings", "is_encoder_decoder", "use_cache")
_TOKENS = ("pad_token_id", "bos_token_id", "decoder_start_token_id")


class RecurrentEncoderDecoderConfig(PreTrainedConfig):
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
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_layers",
    }

    vocab_size: int = 37000
    d_model: int = 512
    num_layers: int = 2
    cell: str = "lstm"
    attention: str = "luong-general"
    input_feeding: bool = True
    attention_window: int | None = None
    bidirectional: bool = True
    dropout: float | int = 0.2
    label_smoothing: float | int = 0.0
    initializer_range: float | int | None = None
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: Any) -> None:
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if name == "attention_window" and value is None:
                continue
            if not _is_int(value) or not 1 <= value <= largest:
                raise ValueError(f"{name} must be a whole number from 1 to {largest:,}, not {value!r}.")
        for name, choices in (("cell", CELLS), ("attention", ATTENTIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}.")
        for name in ("dropout", "label_smoothing"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= 1:
                raise ValueError(f"{name} must be a number from 0 to 1, not {value!r}.")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        for name in _TOKENS:
            if getattr(self, name) is not None and not _is_int(getattr(self, name)):
                raise ValueError(f"{name} must be the id of a token, not {getattr(self, name)!r}.")
        if self.bidirectional and self.d_model % 2:
            raise ValueError(f"Each direction has half of the width: d_model must be even, not {self.d_model}.")
        if self.attention_window is not None and not self.attention.startswith("luong"):
            raise ValueError(f"attention_window is Luong's: it cannot be combined with attention={self.attention!r}.")
        if self.initializer_range is None:
            self.initializer_range = (10 / self.d_model) ** 0.5
        if not _is_number(self.initializer_range) or not 0 <= self.initializer_range < math.inf:
            raise ValueError(f"initializer_range must be a finite number from 0 up, not {self.initializer_range!r}.")
        super().__post_init__(**kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves as the library does; the configuration of a model with the code that it names."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self, "auto_map", None):
            save_code(save_directory)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
