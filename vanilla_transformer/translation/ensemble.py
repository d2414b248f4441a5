"""Several models that decode together, by the mean of their next-token distributions at each step."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput

from vanilla_transformer.data.encoding import reading_backend
from vanilla_transformer.model.generation_vanilla_transformer import PaperGenerationMixin
from vanilla_transformer.model.modeling_vanilla_transformer import (
    CACHE_FIELD,
    check_cache,
    given_cache,
    in_outputs,
    reject_unused,
)

_WRONG_ENCODER_OUTPUTS = "encoder_outputs must be what the ensemble's own get_encoder() returns."
# Settings that models must share to choose each next token together.
_SHARED = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id")


@dataclass
class EnsembleEncoderOutput(ModelOutput):
    """The output of each member's encoder.

    Args:
        last_hidden_state: The states of the first member's encoder, (batch, source length, d_model).
        members: The output of each member's encoder.
    """

    last_hidden_state: torch.Tensor | None = None
    members: tuple[ModelOutput, ...] | None = None


class EnsembleEncoder(nn.Module):
    """The encoders of all members, which read the same source."""

    def __init__(self, models: Sequence[PreTrainedModel]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(model.get_encoder() for model in models)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> EnsembleEncoderOutput:
        """Encode source tokens, (batch, source length), with each member."""
        reject_unused(kwargs)
        outputs = [encoder(input_ids=input_ids, attention_mask=attention_mask) for encoder in self.encoders]
        return EnsembleEncoderOutput(outputs[0].last_hidden_state, tuple(outputs))


class EnsembleCache:
    """The cache of each member.

    Args:
        members: Caches of transformers, or the states of recurrent models, which are None before the first step.
    """

    is_compileable = False
    is_linear = (False,)

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = list(members)

    @property
    def is_croppable(self) -> bool:
        """Return True if tokens can be taken back, as in assisted decoding."""
        return all(cache.is_croppable for cache in self.members)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of target tokens read so far."""
        first = self.members[0]
        return 0 if first is None else int(first.get_seq_length())

    def activate_past_recording(self) -> None:
        """Prepare for `crop`."""
        for cache in self.members:
            cache.activate_past_recording()

    def crop(self, max_length: int) -> None:
        """Take back tokens, as the caches of transformers do."""
        for cache in self.members:
            cache.crop(max_length)


class EnsembleForConditionalGeneration(PaperGenerationMixin, PreTrainedModel):
    """Models of one vocabulary that translate together, by the mean of their distributions at each step.

    They may be of any translating model type of the package. `generate` has the options and the defaults of a single
    model, with the settings of the first one. An ensemble is in evaluation mode. The caller must make sure that its
    models were trained with the same tokenizer.

    Args:
        models: One or more, on one device.

    Raises:
        ValueError: The models cannot decode together.
    """

    main_input_name = "input_ids"

    def __init__(self, models: Sequence[PreTrainedModel]) -> None:
        _check(models)
        own = models[0].config
        fields = {name: getattr(own, name) for name in (*_SHARED, "bos_token_id")}
        # Sources and translations must fit into the positions of every member.
        configs = [model.config for model in models]
        learned = [one for one in configs if getattr(one, "positional_encoding", None) == "learned"]
        if learned:
            limit = min(one.max_position_embeddings for one in learned)
            fields |= {"positional_encoding": "learned", "max_position_embeddings": limit}
        super().__init__(PreTrainedConfig(is_encoder_decoder=True, **fields))
        self.members = nn.ModuleList(models)
        self._is_stateful = any(model._is_stateful for model in models)
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self.eval()

    def get_encoder(self, modality: str | None = None) -> EnsembleEncoder:
        """Return the encoders of all members."""
        return EnsembleEncoder(cast(Sequence[PreTrainedModel], self.members))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: EnsembleEncoderOutput | None = None,
        past_key_values: EnsembleCache | None = None,
        use_cache: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
        cache: EnsembleCache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits of the mean distribution after each target token, (batch, target length, vocabulary).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
            decoder_attention_mask: 1 on target tokens, 0 on padding, (batch, target length so far).
            encoder_outputs: An earlier output of `get_encoder()`, instead of `input_ids`.
            past_key_values: The name of `cache` before transformers 5.24.
            use_cache: Whether to return the caches.
            logits_to_keep: Number of last positions that get logits (0: all).
            cache: The caches of the members after earlier target tokens.
        """
        reject_unused(kwargs)
        if kwargs.get("output_attentions") or kwargs.get("output_hidden_states"):
            raise ValueError("An ensemble returns no attention weights and no hidden states: run its members instead.")
        if encoder_outputs is None:
            assert input_ids is not None
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        cache = given_cache(cache, past_key_values)
        check_cache(cache, EnsembleCache)
        caches = [None] * len(self.members) if cache is None else cache.members
        outputs = [
            member(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=encoded,
                cache=of_member,
                use_cache=use_cache,
                logits_to_keep=logits_to_keep,
            )
            for member, encoded, of_member in zip(self.members, _of_members(encoder_outputs), caches, strict=True)
        ]
        logits = mean_logits([output.logits for output in outputs])
        new_cache = EnsembleCache([output[CACHE_FIELD] for output in outputs]) if use_cache else None
        return Seq2SeqLMOutput(logits=logits, **in_outputs(new_cache))

    def save_pretrained(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise ValueError, because an ensemble is nothing but its members."""
        raise ValueError("An ensemble cannot be saved: save its members, and name them all to use it again.")

    def named_encoder_outputs(self, outputs: tuple[torch.Tensor, ...]) -> NoReturn:
        """Raise ValueError, because a tuple does not show which member encoded what."""
        raise ValueError(_WRONG_ENCODER_OUTPUTS)

    def _reorder_cache(self, cache: EnsembleCache, beam_idx: torch.Tensor) -> EnsembleCache:
        members: Any = self.members
        cache.members = [
            member._reorder_cache(of_member, beam_idx)
            for member, of_member in zip(members, cache.members, strict=True)
        ]
        return cache

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any
    ) -> None:
        """Let each member prepare its own cache, if it needs one before the first step."""
        caches, members = [], cast(Sequence[Any], self.members)
        for member, encoded in zip(members, _of_members(model_kwargs["encoder_outputs"]), strict=True):
            of_member = {"encoder_outputs": encoded}
            member._prepare_cache_for_generation(generation_config, of_member, *args)
            caches.append(of_member.get(CACHE_FIELD))
        if generation_config.use_cache:
            model_kwargs[CACHE_FIELD] = EnsembleCache(caches)


def _of_members(encoder_outputs: ModelOutput) -> tuple[ModelOutput, ...]:
    if not isinstance(encoder_outputs, EnsembleEncoderOutput) or encoder_outputs.members is None:
        raise ValueError(_WRONG_ENCODER_OUTPUTS)
    return encoder_outputs.members


def mean_logits(logits: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns logits of the mean distribution, (..., vocabulary): in float32, or a single model's logits unchanged."""
    if len(logits) == 1:
        return logits[0]
    total = torch.softmax(logits[0], -1, dtype=torch.float32)
    for part in logits[1:]:
        total += torch.softmax(part, -1, dtype=torch.float32)
    # A probability too small for float32 is not impossible.
    return (total / len(logits)).clamp_(min=torch.finfo(torch.float32).tiny).log_()


def as_ensemble(
    found: Sequence[tuple[str, PreTrainedModel, PreTrainedTokenizerBase]],
) -> EnsembleForConditionalGeneration:
    """Combines loaded models, each with its name and its tokenizer, unless they cannot decode together."""
    (first, _, tokenizer), *others = found
    for name, _, other in others:
        if _entries_and_parts(other) != _entries_and_parts(tokenizer):
            raise ValueError(f"{first} and {name} have different tokenizers, so they cannot decode together.")
    return EnsembleForConditionalGeneration([model for _, model, _ in found])


def _check(members: Sequence[PreTrainedModel]) -> None:
    """Raises ValueError if models cannot decode together."""
    for member in members:
        if isinstance(member, EnsembleForConditionalGeneration) or not isinstance(member, PaperGenerationMixin):
            raise ValueError(
                f"A {type(member).__name__} cannot be a member of an ensemble, which takes single translation "
                "models of this package: convert an OPUS-MT model with `vanilla-transformer convert`."
            )
    for number, member in enumerate(members[1:], 2):
        for name in _SHARED:
            one, other = (getattr(model.config, name, None) for model in (members[0], member))
            if one != other:
                raise ValueError(f"Models 1 and {number} cannot decode together: {name} is {one} and {other}.")


def _entries_and_parts(tokenizer: PreTrainedTokenizerBase) -> object:
    """Returns what turns text into ids, and ids into text."""
    return reading_backend(tokenizer).to_str() if tokenizer.is_fast else (type(tokenizer), tokenizer.get_vocab())
