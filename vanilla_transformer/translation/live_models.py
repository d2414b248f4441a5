"""Translation with models that torch has loaded, by an ONNX graph of their weights or by their own `generate`."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.encoding import token_ids
from vanilla_transformer.engine.cpu import fastest_dtype, precision_of
from vanilla_transformer.engine.known import unknown_to_export
from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.session import Found, Session
from vanilla_transformer.graph.settings import Settings
from vanilla_transformer.graph.supported import ACTIVATIONS, shapes
from vanilla_transformer.loading.models import load_model, move
from vanilla_transformer.model.generation_vanilla_transformer import PaperGenerationMixin
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

logger = logging.getLogger(__name__)


class LibraryTokenizer:
    """A tokenizer of transformers, as this package reads and writes with it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the tokens of each text, with its end."""
        return token_ids(texts, self.tokenizer)

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Returns the texts of tokens."""
        return self.tokenizer.batch_decode(sequences, skip_special_tokens=True)

    def detokenize(self, text: str) -> str:
        """Returns text as decoding would give it."""
        is_own = isinstance(self.tokenizer, VanillaTransformerTokenizer)
        return self.tokenizer.detokenize(text) if is_own else text


class GenerateSearch:
    """A model's own `generate`, with the weights that it has at each call.

    Attributes:
        device: `cpu` or `accelerator`.
        max_positions: Tokens that a source may have; None if that is unlimited.
        side_by_side: Number of calls that are best made at a time.
    """

    side_by_side = 1

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        own, config = model.generation_config, model.config
        learned = getattr(config, "positional_encoding", None) == "learned"
        self.max_positions: int | None = config.max_position_embeddings if learned else None
        self.device = "cpu" if model.device.type == "cpu" else "accelerator"
        one = 1 if settings.get("do_sample") else own.num_beams or 1
        self.num_beams: int = settings.get("num_beams") or one
        self.num_return_sequences: int = settings.get("num_return_sequences") or own.num_return_sequences or 1

    @property
    def precision(self) -> str:
        """The type in which it computes."""
        return precision_of(self.model)

    def search(self, rows: Sequence[Sequence[int]]) -> list[list[Found]]:
        """Returns the hypotheses of each row, with scores where there is a beam; without dropout."""
        tokenizer, model = self.tokenizer, self.model
        inputs = tokenizer.pad({"input_ids": [list(row) for row in rows]}, return_tensors="pt").to(model.device)
        with_scores = {"return_dict_in_generate": True} if self.num_beams > 1 else {}
        if with_scores and not isinstance(model, PaperGenerationMixin):
            with_scores["output_scores"] = True  # The library gives those of hypotheses only with those of all steps.
        with evaluating(model):
            output = model.generate(**inputs, **with_scores, **self.settings)
        sequences = output if isinstance(output, torch.Tensor) else output.sequences
        scores = None if isinstance(output, torch.Tensor) else output.get("sequences_scores")
        scores = [None] * len(sequences) if scores is None else scores.tolist()
        # Padding only follows </s>, and the start token of the decoder is not part of the translation.
        counts = (sequences[:, 1:] != tokenizer.pad_token_id).sum(dim=1).tolist()
        found = [
            Found(tokens[1 : count + 1], score)
            for tokens, count, score in zip(sequences.tolist(), counts, scores, strict=True)
        ]
        width = len(found) // len(rows)
        return [found[start : start + width] for start in range(0, len(found), width)]


def live_search(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    precision: str,
    device: str | None = None,
    *,
    logged: bool = False,
    **settings: Any,
) -> tuple[Session | GenerateSearch, LibraryTokenizer]:
    """Returns the fastest search for a loaded model and the tokenizer; moves the model to the device, if given.

    The ONNX graph copies the model's current weights. If it does not support the model or the settings, the model
    itself decodes, and the reason is logged unless `logged` is True.
    """
    if not getattr(model.config, "is_encoder_decoder", True):
        raise ValueError(
            f"A {type(model).__name__} does not translate: use `vanilla-transformer predict` or a "
            "pipeline of transformers."
        )
    if device is not None:
        for member in getattr(model, "members", (model,)):
            move(member, device)
    try:
        return _session(model, precision, settings), LibraryTokenizer(tokenizer)
    except ModelError as unsupported:
        if precision == "int8":
            raise ValueError(f"8-bit quantization cannot be combined with {unsupported}: omit one.") from unsupported
        if not logged:
            name = type(model).__name__
            logger.info("%s.generate is used, because the ONNX graph does not support %s.", name, unsupported)
    given = {name: one for name, one in settings.items() if one is not None}
    return GenerateSearch(model, tokenizer, **given), LibraryTokenizer(tokenizer)


def _session(model: PreTrainedModel, precision: str, settings: dict[str, Any]) -> Session:
    reason = unknown_to_export(model, ACTIVATIONS)
    if reason is not None or not isinstance(model, VanillaTransformerForConditionalGeneration):
        raise ModelError(reason or f"a {type(model).__name__}")
    if model.device.type != "cpu" or precision == "bfloat16":
        raise ModelError(f"{precision} on {model.device}")
    config, state = model.config.to_dict(), model.state_dict()
    weights = ((name, state[name].detach().float().numpy().copy()) for name in shapes(config))
    search = Settings.of(config, model.generation_config.to_diff_dict(), settings)
    return Session(config, weights, search, precision=precision)


def load_search(
    models: Sequence[str], *, precision: str, device: str | None, logged: bool, **settings: Any
) -> tuple[Session | GenerateSearch, LibraryTokenizer]:
    """Loads a model, or an ensemble of several that share a vocabulary, with the fastest search and its tokens."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    found = [load_model(name, device=device, dtype=dtype) for name in models]
    model: Any
    model, tokenizer = found[0]
    if len(models) > 1:
        from vanilla_transformer.translation.ensemble import as_ensemble

        model = as_ensemble([(name, *model_of) for name, model_of in zip(models, found, strict=True)])
    search, tokens = live_search(model, tokenizer, precision, logged=logged, **settings)
    if precision == "auto" and isinstance(search, GenerateSearch):
        widths = [getattr(member.config, "d_model", 0) for member, _ in found]
        model.to(fastest_dtype(min(widths), model.device))
    return search, tokens


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Turns off dropout in its body; each part of the model then has the mode that it had."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
