"""Right-to-left targets: the model learns and decodes them reversed; everything else sees them in reading order.

Shapes in names: B batch · T target.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from .loss import IGNORED_LABEL

DIRECTIONS = ("left-to-right", "right-to-left")
# Settings that `generate` would apply in writing order, while the caller means reading order.
_OF_READING_ORDER = {
    "streamer": "hands out tokens as they are written, the last first",
    "prefix_allowed_tokens_fn": "is asked of what a target begins with",
    "assistant_model": "would have to write from the right too",
    **dict.fromkeys(("bad_words_ids", "force_words_ids", "sequence_bias"), "names tokens in the order of reading"),
    "stop_strings": "ends what is read from the left",
    "forced_bos_token_id": "is the first token to be read, and written last",
}


def is_right_to_left(config: PreTrainedConfig) -> bool:
    """Tells whether the model writes its targets from their end."""
    return getattr(config, "target_direction", DIRECTIONS[0]) == DIRECTIONS[1]


def turned(ids_BT: torch.Tensor, config: Any) -> torch.Tensor:
    """Returns indices (batch, target length) that reverse the tokens before each `</s>`; applied twice, they cancel.

    Args:
        ids_BT: Targets without the decoder start token, followed by padding or -100.
        config: Gives the ids of `</s>` and padding.
    """
    places_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    ends_BT = torch.isin(ids_BT, torch.tensor(ends, device=ids_BT.device))
    text_BT = (ids_BT != IGNORED_LABEL) & (ids_BT != config.pad_token_id)
    # A truncated target has no `</s>`.
    to_last_B1 = ((places_T + 1) * text_BT).amax(1, keepdim=True)
    length_B1 = torch.where(ends_BT.any(1, keepdim=True), ends_BT.int().argmax(1, keepdim=True), to_last_B1)
    return torch.where(places_T < length_B1, length_B1 - 1 - places_T, places_T)


def as_read(output: Any, config: Any) -> Any:
    """Returns the output of `generate` with its sequences in reading order."""
    if isinstance(output, torch.Tensor):
        return torch.cat((output[:, :1], output[:, 1:].gather(1, turned(output[:, 1:], config))), 1)
    output["sequences"] = as_read(output["sequences"], config)
    return output


def check_request(asked: Mapping[str, Any], *settings: Any) -> None:
    """Refuses settings of `generate` that have no meaning where the target is written from its end.

    Args:
        asked: The arguments of the call.
        settings: The generation configs of the call and of the model.

    Raises:
        ValueError: The call or a configuration has such a setting.
    """
    for name, why in _OF_READING_ORDER.items():
        if any(value is not None for value in (asked.get(name), *(getattr(one, name, None) for one in settings))):
            raise ValueError(f"This model writes from right to left, and {name} {why}: leave it out.")
    prefix = asked.get("decoder_input_ids")
    if asked.get("decoder_inputs_embeds") is not None or (prefix is not None and prefix.shape[1] > 1):
        raise ValueError("This model writes from right to left, so that no beginning of a target can be given to it.")


__all__ = ["DIRECTIONS", "as_read", "check_request", "is_right_to_left", "turned"]
