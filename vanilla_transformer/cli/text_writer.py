"""Continuous text: a language model writes, and its text is shown word by word."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer


def continue_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    max_new_tokens: int,
    search: dict[str, Any],
    show: Callable[[str], object] | None = None,
) -> tuple[str, int]:
    """Returns the text with which a language model continues a prompt, and its number of tokens.

    The text may outgrow the block length of the model's training: when a block is full it continues from the second
    half of what it has read, because later positions would be new to it.

    Args:
        search: Settings of `generate`, such as `num_beams` or `do_sample`.
        show: Called with each piece of the text as soon as its words are complete.
    """
    # A tokenizer that puts nothing before a text has no token for an empty one.
    ids: list[int] = tokenizer(prompt)["input_ids"] or [model.config.bos_token_id]
    stream = None if show is None or search["num_beams"] > 1 else _Stream(tokenizer, show)
    block, end = int(model.config.max_position_embeddings), model.generation_config.eos_token_id
    written: list[int] = []
    while len(written) < max_new_tokens and written[-1:] != [end]:
        if len(ids) >= block:
            ids = ids[-max(1, block // 2) :]
        inputs = torch.tensor([ids], device=model.device)
        most = min(max_new_tokens - len(written), block - len(ids))
        found: Any = model.generate(  # type: ignore[operator]
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=most, streamer=stream, **search
        )
        written += found[0, len(ids) :].tolist()
        ids = found[0].tolist()
    text = str(tokenizer.decode(written, skip_special_tokens=True))
    if stream is not None:
        stream.finish()
    elif show is not None:
        show(text)
    return text, len(written)


class _Stream(TextStreamer):
    """The library's streamer, over several calls of `generate` that write one text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.show = show

    def end(self) -> None:
        """Ends one call; the next one begins with the text already read."""
        self.next_tokens_are_prompt = True

    def finish(self) -> None:
        """Ends the text."""
        super().end()

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Shows the completed words."""
        self.show(text)
