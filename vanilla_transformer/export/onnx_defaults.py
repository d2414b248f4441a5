"""A model's own settings of `generate`: those that exports do not follow, and the defaults of its ONNX graph."""

from dataclasses import dataclass
from typing import Any, Self

import torch

from vanilla_transformer.engine.known import max_new_tokens
from vanilla_transformer.export.refusals import refuse_settings
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

# Settings that the graph follows, or has its own form of; bad_words_ids only of single tokens.
_FOLLOWED = ("bad_words_ids", "forced_eos_token_id", "quantization", "suppress_tokens")


@dataclass(frozen=True)
class Defaults:
    """Default settings of a search.

    Attributes:
        google: True for Google's length penalty.
        beyond: Tokens that a translation may have more than its source, used if there is no `most`.
        most: Maximum number of tokens of a translation.
        positions: Number of learned positions; None if positions are unlimited.
        padding: Token after the end.
        ends: Tokens that end a hypothesis.
        forced_end: Tokens one of which is forced at the length limit.
    """

    num_beams: int
    num_return_sequences: int
    length_penalty: float
    google: bool
    early_stopping: bool | str
    beyond: int
    most: int | None
    positions: int | None
    start: int
    padding: int
    ends: tuple[int, ...]
    never: tuple[int, ...]
    forced_end: tuple[int, ...] | None

    @classmethod
    def of(cls, model: VanillaTransformerForConditionalGeneration) -> Self:
        """Reads the defaults of a model."""
        config, given = model.config, model.generation_config.to_diff_dict()
        refuse_settings(model, _FOLLOWED)

        def setting(name: str, otherwise: object) -> Any:
            value = given.get(name)
            return otherwise if value is None else value

        google = setting("length_penalty_type", "huggingface") == "google"
        never = [word[0] for word in given.get("bad_words_ids") or ()] + [*(given.get("suppress_tokens") or ())]
        forced = given.get("forced_eos_token_id")
        return cls(
            num_beams=setting("num_beams", 1),
            num_return_sequences=setting("num_return_sequences", 1),
            length_penalty=setting("length_penalty", 0.6 if google else 1.0),
            google=google,
            early_stopping=setting("early_stopping", "never" if google else False),
            beyond=setting("max_length_beyond_source", 0),
            most=max_new_tokens(given),
            positions=config.max_position_embeddings if config.positional_encoding == "learned" else None,
            start=setting("decoder_start_token_id", config.decoder_start_token_id),
            padding=setting("pad_token_id", config.pad_token_id),
            ends=_tokens(setting("eos_token_id", config.eos_token_id)),
            never=tuple(never),
            forced_end=None if forced is None else _tokens(forced),
        )


def _tokens(given: object) -> tuple[int, ...]:
    return tuple(torch.as_tensor(given).flatten().tolist())
