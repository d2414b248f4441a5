"""Continuous text: a language model writes, and its text is shown word by word."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer


class TextWriter:
    """A language model that continues prompts, even beyond the block length of its training.

    When a block is full it continues from the second half of what it has read: later positions would be new to it.

    Args:
        max_new_tokens: Maximum number of tokens to write per prompt.
        search: Settings of `generate`, such as `num_beams` or `do_sample`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, search: dict[str, Any]
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_new_tokens, self.search = max_new_tokens, search
        self.block = int(model.config.max_position_embeddings)

    def write(
        self, prompt: str, seed: int | None = None, show: Callable[[str], object] | None = None
    ) -> tuple[str, int]:
        """Returns the text that continues a prompt, and its number of tokens.

        Args:
            seed: The sample depends on it and on the prompt.
            show: Called with each piece of the text as soon as its words are complete.
        """
        if seed is not None:
            torch.manual_seed(seed)
        # A tokenizer that puts nothing before a text has no token for an empty one.
        ids: list[int] = self.tokenizer(prompt)["input_ids"] or [self.model.config.bos_token_id]
        stream = None if show is None or self.search["num_beams"] > 1 else _Stream(self.tokenizer, show)
        written: list[int] = []
        end = self.model.generation_config.eos_token_id
        while len(written) < self.max_new_tokens and not (written and written[-1] == end):
            if len(ids) >= self.block:
                ids = ids[-max(1, self.block // 2) :]
            most = min(self.max_new_tokens - len(written), self.block - len(ids))
            found = self._generate(ids, most, stream)
            written += found
            ids = [*ids, *found]
        text = str(self.tokenizer.decode(written, skip_special_tokens=True))
        if stream is not None:
            stream.finish()
        elif show is not None:
            show(text)
        return text, len(written)

    def _generate(self, ids: list[int], most: int, stream: "_Stream | None") -> list[int]:
        inputs = torch.tensor([ids], device=self.model.device)
        found: Any = self.model.generate(  # type: ignore[operator]
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=most, streamer=stream, **self.search
        )
        return found[0, len(ids) :].tolist()


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
