"""What a model answers with a part of it changed, as under "What if" on the page that computes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from vanilla_transformer.model.modeling_vanilla_transformer import MultiHeadAttention


def changes(model: Any, head: int) -> Iterator[str]:
    """Yields the words for a change of the model, which ends with the next.

    Args:
        head: The head of the last cross-attention that is switched off, counted from 1.
    """
    encoder, decoder = model.model.encoder, model.model.decoder
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    last = decoder.layers[-1].cross_attention

    def off(module: Any, args: Any) -> Any:
        heads = args[0].unflatten(-1, (-1, last.d_v)).clone()
        heads[..., head - 1, :] = 0
        return (heads.flatten(-2),)

    def removed(module: Any, args: Any, given: Any) -> Any:
        return torch.zeros_like(given)

    def undivided(module: Any, args: Any, given: Any) -> Any:
        return given * last.d_k**0.5

    def skipped(module: Any, args: Any, given: Any) -> Any:
        return args[0]

    def unmasked(module: Any, args: Any) -> Any:
        return args[0], None

    for words, hooks in {
        "positions removed": [(one.positional_encoding.register_forward_hook, removed) for one in (encoder, decoder)],
        "no division by √d_k": [(one.q_proj.register_forward_hook, undivided) for one in attentions],
        f"head {head} of the last cross-attention off": [(last.out_proj.register_forward_pre_hook, off)],
        "encoder layer 2 skipped": [(encoder.layers[1].register_forward_hook, skipped)],
        "decoder layer 1 skipped": [(decoder.layers[0].register_forward_hook, skipped)],
        "mask removed": [(one.self_attention.register_forward_pre_hook, unmasked) for one in decoder.layers],
    }.items():
        handles = [register(hook) for register, hook in hooks]
        yield words
        for handle in handles:
            handle.remove()


@torch.no_grad()
def probability(model: Any, source: torch.Tensor, target: torch.Tensor) -> float:
    """Returns the probability of an answer, token by token: without its mask a decoder would see those to come."""
    product = 1.0
    for length in range(1, target.shape[1]):
        logits = model(input_ids=source, decoder_input_ids=target[:, :length], use_cache=False).logits
        product *= float(logits[0, -1].softmax(-1)[target[0, length]])
    return product


def table(model: Any, tokenizer: Any, text: str, other: str, head: int) -> str:
    """Returns a table in Markdown: each change, the answer with it, and the probability of the first answer."""
    source, different = (tokenizer(one, return_tensors="pt").input_ids for one in (text, other))
    search = partial(model.generate, use_cache=False)  # What the mask lets a token see changes with each step.
    first = search(source)

    def row(words: str, read: torch.Tensor) -> str:
        answer, share = tokenizer.decode(search(read)[0], skip_special_tokens=True), probability(model, read, first)
        return f"| {words} | {answer} | {f'{share:.2f}' if share >= 0.005 else 'below 0.005'} |"

    rows = ["| | answer | probability of the first answer |", "|---|---|---|", row(f"*{text}*, undisturbed", source)]
    rows += [row(words, source) for words in changes(model, head)]
    return "\n".join([*rows, row(f"*{other}*", different)])
