"""Translation with models that torch has loaded, by an ONNX graph of their weights or by their own `generate`."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.data.encoding import token_ids
from vanilla_transformer.errors import ModelError, SettingError, did_you_mean
from vanilla_transformer.graph.session import Found, Session
from vanilla_transformer.graph.settings import LENGTH_LIMITS, Settings, check_tokens
from vanilla_transformer.graph.supported import ACTIVATIONS, shapes
from vanilla_transformer.loading.models import load_model, move
from vanilla_transformer.loading.standard_models import unsupported_part
from vanilla_transformer.machine import fastest_dtype
from vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

logger = logging.getLogger(__name__)

# Logits that are computed together when hypotheses are scored.
_LOGITS_TOGETHER = 2**25
# The modules of a model that return to training mode, and how many threads evaluate the model now.
_IN_EVALUATION: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], int]] = WeakKeyDictionary()
_LOCK = threading.Lock()


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
        known = {*vars(GenerationConfig()), *signature(GenerationMixin.generate).parameters, *LENGTH_LIMITS}
        for name in settings.keys() - known - {"length_penalty_type", "tokenizer"}:
            raise SettingError(f"{name} is not a setting of generate{did_you_mean(name, known) or '.'}")
        check_tokens(settings, config.vocab_size)
        call = settings.get("generation_config", own)
        if not isinstance(call, GenerationConfig):
            raise SettingError(f"generation_config must be a GenerationConfig of transformers, not {call!r}.")
        ends = settings.get("eos_token_id"), call.eos_token_id, own.eos_token_id
        self._ends = torch.tensor(next((one for one in ends if one is not None), [-1])).flatten()
        learned = getattr(config, "positional_encoding", None) == "learned"
        self.max_positions: int | None = config.max_position_embeddings if learned else None
        self.device = "cpu" if model.device.type == "cpu" else "accelerator"
        one = 1 if settings.get("do_sample") else own.num_beams or 1
        self.num_beams: int = settings.get("num_beams") or one
        self.num_return_sequences: int = settings.get("num_return_sequences") or own.num_return_sequences or 1

    @property
    def precision(self) -> str:
        """The type in which it computes."""
        return str(self.model.dtype).removeprefix("torch.")

    def search(self, rows: Sequence[Sequence[int]]) -> list[list[Found]]:
        """Return the hypotheses of each row without dropout. Those of a beam have scores."""
        tokenizer, model = self.tokenizer, self.model
        inputs = tokenizer.pad({"input_ids": [list(row) for row in rows]}, return_tensors="pt").to(model.device)
        scores: list[float | None]
        with evaluating(model):
            if self.num_beams > 1:
                scored = _scoring_settings(model, self.settings)
                # To score hypotheses, transformers would keep the scores of all tokens at each step.
                asked = {} if scored else {"output_scores": True}
                output = model.generate(**inputs, return_dict_in_generate=True, **asked, **self.settings)
                sequences, lengths = output.sequences, (output.beam_indices >= 0).sum(dim=1)
                if scored is None:
                    scores = output.sequences_scores.tolist()
                else:
                    scores = _scores(model, inputs, sequences, lengths, scored)
            else:
                output = model.generate(**inputs, **self.settings)
                sequences = output if isinstance(output, torch.Tensor) else output.sequences
                scores = [None] * len(sequences)
                lengths = _lengths(sequences[:, 1:], self._ends, tokenizer.pad_token_id)
        # The start token of the decoder is not part of the translation.
        found = [
            Found(tokens[1 : length + 1], score)
            for tokens, length, score in zip(sequences.tolist(), lengths.tolist(), scores, strict=True)
        ]
        width = len(found) // len(rows)
        return [found[start : start + width] for start in range(0, len(found), width)]


def _lengths(tokens: torch.Tensor, ends: torch.Tensor, padding: int) -> torch.Tensor:
    """Return the number of tokens of each row up to its first end token, or else up to its last real token.

    A model may also write the padding token itself, which then counts.
    """
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    is_end = torch.isin(tokens, ends.to(tokens.device))
    last_real = (tokens.ne(padding) * places).amax(1)
    return torch.where(is_end.any(1), is_end.int().argmax(1) + 1, last_real)


def _scoring_settings(model: Any, call: dict[str, Any]) -> Settings | None:
    """Return the settings of a beam search whose scores follow from the model's own probabilities, or None."""
    config = {"positional_encoding": None, **model.config.to_dict()}
    try:
        settings = Settings.of(config, model.generation_config.to_diff_dict(), call)
    except ModelError:
        return None
    # An end that is ruled out at some steps would change the other probabilities there.
    is_changed = settings.renormalized and settings.min_new_tokens > 0
    # With few possible tokens transformers also returns hypotheses that are ruled out, which only its scores show.
    possible = config["vocab_size"] - len({*settings.suppressed, *settings.ends})
    has_impossible = possible < (1 + len(settings.ends)) * settings.num_beams
    has_impossible |= settings.forced_end is not None and settings.max_new_tokens == 1
    return None if is_changed or has_impossible else settings


@torch.no_grad()
def _scores(
    model: Any, inputs: Any, sequences: torch.Tensor, lengths: torch.Tensor, settings: Settings
) -> list[float | None]:
    """Return the score of each hypothesis, its log-probability divided by the length penalty, from one forward pass.

    Args:
        inputs: The sources, each of which has the same number of hypotheses.
        sequences: The hypotheses after the decoder's start token, (hypotheses, length), in the order of their sources.
        lengths: The number of tokens of each hypothesis after the start token.
    """
    width = len(sequences) // len(inputs["input_ids"])
    size = max(1, _LOGITS_TOGETHER // (sequences.shape[1] * model.config.vocab_size))
    sums = []
    for start in range(0, len(sequences), size):
        rows = torch.arange(start, min(start + size, len(sequences)), device=sequences.device)
        sources = {name: inputs[name][rows // width] for name in ("input_ids", "attention_mask")}
        logits = model(**sources, decoder_input_ids=sequences[rows, :-1]).logits.float()
        if settings.renormalized:
            logits[..., list(settings.suppressed)] = -torch.inf
        written = sequences[rows, 1:]
        is_over = torch.arange(written.shape[1], device=written.device) >= lengths[rows, None]
        # A token after the end may be one that cannot be looked up.
        log_p = logits.log_softmax(-1).gather(-1, written.masked_fill(is_over, 0)[..., None])[..., 0]
        if settings.forced_end is not None and settings.max_new_tokens is not None:
            log_p[:, settings.max_new_tokens - 1 :] = 0.0  # A forced end has the probability 1.
        sums.append(log_p.masked_fill(is_over, 0.0).sum(1))
    # On the host, because some accelerators have no numbers of 64 bits.
    totals, counts = torch.cat(sums).cpu().double(), lengths.cpu().double()
    return (totals / ((5 + counts) / 6 if settings.google else counts) ** settings.length_penalty).tolist()


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
    reason = unsupported_part(model, ACTIVATIONS)
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
    """Turn off dropout in the body. Afterwards each part of the model has the mode that it had.

    Several threads may evaluate a model at once. The mode is restored when the last one has finished.
    """
    with _LOCK:
        in_training, users = _IN_EVALUATION.get(model, ([], 0))
        if users == 0:
            in_training = [module for module in model.modules() if module.training]
            model.eval()
        _IN_EVALUATION[model] = in_training, users + 1
    try:
        yield
    finally:
        with _LOCK:
            in_training, users = _IN_EVALUATION.pop(model)
            if users > 1:
                _IN_EVALUATION[model] = in_training, users - 1
            else:
                for module in in_training:
                    module.training = True
