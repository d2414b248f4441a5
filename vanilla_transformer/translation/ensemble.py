"""Several models that decode together: each step takes the mean of what they say of the next token."""

import contextlib
import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput

from vanilla_transformer.model.direction import DIRECTIONS
from vanilla_transformer.model.fast_generation import start_decoding, unsupported_reason
from vanilla_transformer.model.generation import PaperGenerationMixin
from vanilla_transformer.model.search import Decoding

Mean = Literal["probabilities", "log-probabilities"]
_SPECIAL_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass
class _Sources(ModelOutput):
    """What stands in the place of an encoder's output: each member encodes the sources itself."""

    input_ids: torch.Tensor | None = None
    settings: GenerationConfig | None = None


class EnsembleForConditionalGeneration(PaperGenerationMixin, PreTrainedModel):
    """Models of one vocabulary that translate together, by the mean of their distributions at each step.

    They may be of any family of the package that translates. `generate` is that of a single model, with the settings
    of the first, on the fast path alone: what only the library's search does is refused. An ensemble is in evaluation
    mode; that its models were trained with one tokenizer is the caller's to know.

    Args:
        models: One or more, on one device.
        mean: `probabilities` for their arithmetic mean, or `log-probabilities` for the geometric one, scaled to sum to
            one, in which what is unlikely to one model is unlikely to all.

    Raises:
        ValueError: The models cannot decode together.
    """

    main_input_name = "input_ids"
    _is_stateful = True  # Each member remembers in its own form: there is no cache to cut back.

    def __init__(self, models: Sequence[PreTrainedModel], mean: Mean = "probabilities") -> None:
        members: list[Any] = list(models)
        _check(members, mean)
        own = members[0].config
        config: Any = PreTrainedConfig(is_encoder_decoder=True)
        for name in ("vocab_size", "bos_token_id", *_SPECIAL_IDS):
            setattr(config, name, getattr(own, name))
        config.target_direction = _direction(members[0])
        # Sources and translations must fit into the positions of every member.
        ends = [member.config.max_position_embeddings for member in members if _has_learned_positions(member)]
        if ends:
            config.positional_encoding, config.max_position_embeddings = "learned", min(ends)
        super().__init__(config)
        self.members, self.mean = nn.ModuleList(members), mean
        self.generation_config = copy.deepcopy(members[0].generation_config)
        self.eval()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Log-probabilities of what follows each of some target tokens, (batch, target length, vocabulary).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
            labels: Target tokens in their place, as a single model takes them; there is no loss.
        """
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        given |= {} if labels is None else {"labels": labels}
        logits = [member(**given, use_cache=False).logits for member in self.members]
        return Seq2SeqLMOutput(logits=torch.log_softmax(mean_logits(logits, self.mean).float(), -1))

    @contextlib.contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """As that of a single model, for all members."""
        members: Any = self.members
        with contextlib.ExitStack() as stack:
            for member in members:
                stack.enter_context(member.fixed_weights())
            yield

    def free_packed_weights(self) -> None:
        """As that of a single model, for all members."""
        members: Any = self.members
        for member in members:
            member.free_packed_weights()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused, as an ensemble is nothing but its members."""
        raise ValueError("An ensemble is not saved: save its members, and name them all where it is wanted.")

    def start_decoding(self, sources: _Sources, attention_mask: torch.Tensor | None, width: int) -> Decoding:
        """The decoding before the first token, of sources that stand `width` times each, for this package's search."""
        assert sources.input_ids is not None and sources.settings is not None
        ids = sources.input_ids[::width]
        mask = None if attention_mask is None else attention_mask[::width]
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=False):
            decodings = [start_decoding(member, ids, mask, sources.settings) for member in self.members]
        return _Together(decodings, self.mean, self.device.type)

    def _maybe_prepare_encoder_kwargs_for_generation(
        self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any], model_input_name: str | None, settings: Any
    ) -> dict[str, Any]:
        if model_input_name not in (None, "input_ids") or model_kwargs.get("encoder_outputs") is not None:
            raise ValueError("An ensemble takes input_ids: embeddings and encoder outputs are those of one model.")
        return {**model_kwargs, "encoder_outputs": _Sources(inputs_tensor, settings)}

    def _can_use_fast_path(self, *asked: Any) -> bool:
        if not super()._can_use_fast_path(*asked):
            raise ValueError(
                "An ensemble has this package's own search alone, which does not support "
                f"{unsupported_reason(self, *asked)}: leave it out, or take a single model."
            )
        return True


class _Together:
    """The decodings of several models as one."""

    state = None  # Nothing to go on from later.

    def __init__(self, decodings: list[Decoding], mean: Mean, device_type: str) -> None:
        self.decodings, self.mean, self.device_type = decodings, mean, device_type

    def read(self, tokens_NP: torch.Tensor) -> None:
        with torch.autocast(self.device_type, enabled=False):
            for decoding in self.decodings:
                decoding.read(tokens_NP)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device_type, enabled=False):
            return mean_logits([decoding.step(tokens_NW) for decoding in self.decodings], self.mean)

    def reorder(self, parents_NW: torch.Tensor) -> None:
        for decoding in self.decodings:
            decoding.reorder(parents_NW)

    def select(self, sentences: torch.Tensor) -> None:
        for decoding in self.decodings:
            decoding.select(sentences)


def mean_logits(logits: Sequence[torch.Tensor], mean: Mean) -> torch.Tensor:
    """Logits, (..., vocabulary), of the mean distribution: those of a single model as they are, else in float32."""
    if len(logits) == 1:
        return logits[0]
    take = torch.softmax if mean == "probabilities" else torch.log_softmax
    total = take(logits[0], -1, dtype=torch.float32)
    for part in logits[1:]:
        total += take(part, -1, dtype=torch.float32)
    total /= len(logits)
    # What is too unlikely for float32 is not impossible.
    return total.clamp_(min=torch.finfo(torch.float32).tiny).log_() if mean == "probabilities" else total


def check_one_vocabulary(named: Sequence[tuple[str, PreTrainedTokenizerBase]]) -> None:
    """Refuses tokenizers of models that are to decode together and do not read and write the same ids.

    Args:
        named: Each with the name of its model.

    Raises:
        ValueError: Two differ; it says in what.
    """
    (first, tokenizer), *others = named
    for name, other in others:
        difference = difference_of_vocabularies(tokenizer, other)
        if difference is not None:
            raise ValueError(
                f"{first} and {name} have different vocabularies, so they cannot decode together: {difference}."
            )


def difference_of_vocabularies(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """In what two tokenizers differ that do not read and write the same ids; None for those that do."""
    ids, theirs = one.get_vocab(), other.get_vocab()
    if len(theirs) != len(ids):
        return f"one has {len(ids):,} entries and the other {len(theirs):,}"
    if theirs != ids:
        piece = min((key for key in ids if theirs.get(key) != ids[key]), key=ids.__getitem__)
        return f"{piece!r} is {ids[piece]} in one and {theirs.get(piece, 'missing')} in the other"
    return None if _segmentation(one) == _segmentation(other) else "they split text in different ways"


def _segmentation(tokenizer: PreTrainedTokenizerBase) -> Any:
    """How text becomes pieces, and pieces text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer)
    parts = json.loads(backend.to_str())
    # These two change with each use.
    return {name: part for name, part in parts.items() if name not in ("padding", "truncation")}


def _check(members: list[Any], mean: str) -> None:
    """Raises ValueError where models cannot decode together."""
    if mean not in get_args(Mean):
        raise ValueError(f"mean must be one of {', '.join(get_args(Mean))}, not {mean!r}.")
    if not members:
        raise ValueError("An ensemble needs at least one model.")
    for member in members:
        if isinstance(member, EnsembleForConditionalGeneration):
            raise ValueError("An ensemble cannot be a member of another: give its models themselves.")
        if not isinstance(member, PaperGenerationMixin):
            raise ValueError(
                f"A {type(member).__name__} cannot be a member of an ensemble, whose models are of this package and "
                "translate: `vanilla-transformer convert` makes one of an OPUS-MT model."
            )
    first = members[0]
    for number, member in enumerate(members[1:], 2):
        facts = {"vocab_size": (first.config.vocab_size, member.config.vocab_size)}
        mine, theirs = _special_ids(first.config), _special_ids(member.config)
        facts |= {name: (mine[name], theirs[name]) for name in _SPECIAL_IDS}
        facts["target_direction"] = (_direction(first), _direction(member))
        facts["device"] = (first.device, member.device)
        for name, (one, other) in facts.items():
            if one != other:
                raise ValueError(
                    f"The models of an ensemble must have the same {name}: it is {one} in the first and {other} in "
                    f"number {number}."
                )


def _special_ids(config: PreTrainedConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in _SPECIAL_IDS}


def _direction(model: Any) -> str:
    return getattr(model.config, "target_direction", DIRECTIONS[0])


def _has_learned_positions(model: Any) -> bool:
    return getattr(model.config, "positional_encoding", None) == "learned"
