"""`vanilla-transformer generate`: continuations of prompts, shown as they are written."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from vanilla_transformer.cli.arguments import Computing, Flag, Model
from vanilla_transformer.cli.files import open_output, read_input
from vanilla_transformer.errors import ModelError
from vanilla_transformer.options import HINT, Count, OptionalCount, OptionalPositive, number

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling: tokens drawn from the model's probabilities; each of these options asks for it."""

    #: Draw from this many of the likeliest tokens (default: all).
    top_k: OptionalCount = None
    #: Draw from the likeliest tokens whose probabilities add up to this (default: all).
    top_p: Annotated[float | None, number(float, 0, 1, above=True), HINT] = None
    #: Divide the logits by this; below 1, likely tokens become likelier; 1 draws as the model says (default: 1).
    temperature: OptionalPositive = None
    #: Random seed (default: 1).
    seed: Annotated[int | None, number(int, 0), HINT] = None


@dataclass(frozen=True)
class Generate:
    """Continue each line of standard input with a language model, and show the text as it is written.

    Each line is a prompt, as in `echo "To be" | vanilla-transformer generate MODEL --max-new-tokens 100 --top-p 0.9`;
    an empty line has the model begin a text of its own. Search is greedy unless a sampling option is given. A text
    that outgrows the model's context continues from its latest tokens.
    """

    #: Directory or Hub id of a language model.
    model: Model
    #: Maximum tokens to write per prompt; a model trained on whole texts may end earlier.
    max_new_tokens: Count = 200
    #: Write one JSON object per line: the prompt, its continuation, and the continuation's number of tokens.
    json: Flag = False
    sampling: SamplingOptions = SamplingOptions()
    computing: Computing = Computing()

    def run(self) -> None:
        """Continues each prompt."""
        import torch

        from vanilla_transformer.tasks import task_of_model

        task = task_of_model(self.model)
        if task.command != "generate":
            raise ModelError(
                f"{self.model} is a model for {task.name}: give it to `{task.command}`, not to `generate`."
            )
        model, tokenizer = self.computing.load(self.model)
        with open_output(None) as output:
            show = (lambda text: None) if self.json else partial(print, end="", file=output, flush=True)
            for number, prompt in enumerate(read_input(None)):
                torch.manual_seed(1 if self.sampling.seed is None else self.sampling.seed)
                show("\n" * (number > 0) + prompt)
                text, tokens = continue_text(model, tokenizer, prompt, self.max_new_tokens, self._search(), show)
                values = {"prompt": prompt, "text": text, "tokens": tokens}
                print(json.dumps(values, ensure_ascii=False) if self.json else "", file=output)

    def _search(self) -> dict[str, object]:
        """Returns arguments of `generate` for the search."""
        sampling = self.sampling
        if sampling == SamplingOptions():
            return {"do_sample": False}
        search = {"top_k": sampling.top_k or 0, "top_p": sampling.top_p, "temperature": sampling.temperature or 1.0}
        return {"do_sample": True, **search}


def continue_text(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompt: str,
    max_new_tokens: int,
    search: dict[str, object],
    show: Callable[[str], object],
) -> tuple[str, int]:
    """Returns the text with which a language model continues a prompt, and its number of tokens.

    The text may outgrow the block length of the model's training: when a block is full it continues from the second
    half of what it has read, because later positions would be new to it.

    Args:
        search: Settings of `generate`, such as `do_sample`.
        show: Called with each piece of the text as soon as its words are complete.
    """
    import torch
    from transformers import TextStreamer

    class Stream(TextStreamer):
        """The library's streamer, over several calls of `generate` that write one text."""

        def end(self) -> None:
            self.next_tokens_are_prompt = True

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            show(text)

    # A tokenizer that puts nothing before a text has no token for an empty one.
    ids: list[int] = tokenizer(prompt)["input_ids"] or [model.config.bos_token_id]
    stream = Stream(tokenizer, skip_prompt=True, skip_special_tokens=True)
    block, end = int(model.config.max_position_embeddings), model.generation_config.eos_token_id
    ends, written = end if isinstance(end, list) else [end], list[int]()
    while len(written) < max_new_tokens and not {*written[-1:]}.intersection(ends):
        if len(ids) >= block:
            ids = ids[-max(1, block // 2) :]
        inputs, plain = torch.tensor([ids], device=model.device), {"num_beams": 1, "return_dict_in_generate": False}
        room = min(max_new_tokens - len(written), block - len(ids))
        found: torch.Tensor = model.generate(  # type: ignore[operator]
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=room,
            streamer=stream,
            **plain,
            **search,
        )
        written += found[0, len(ids) :].tolist()
        ids = found[0].tolist()
    TextStreamer.end(stream)
    return str(tokenizer.decode(written, skip_special_tokens=True)), len(written)
