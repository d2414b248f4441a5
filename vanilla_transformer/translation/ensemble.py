"""Several models that decode together, by the mean of their next-token distributions at each step."""

import copy
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vanilla_transformer import engine
from vanilla_transformer.data.encoding import reading_backend
from vanilla_transformer.engine.search import DecoderState
from vanilla_transformer.model.generation_vanilla_transformer import PaperGenerationMixin
from vanilla_transformer.model.modeling_vanilla_transformer import reject_unused

# What models must share to choose each next token together.
_SHARED = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id")


class EnsembleForConditionalGeneration(PaperGenerationMixin, PreTrainedModel):
    """Models of one vocabulary that translate together, by the mean of their distributions at each step.

    They may be of any translating family of the package. `generate` is that of a single model, with the settings of
    the first, on the fast path alone: options that need the library's search are refused. An ensemble is in evaluation
    mode. The caller must know that its models were trained with one tokenizer.

    Args:
        models: One or more, on one device.

    Raises:
        ValueError: The models cannot decode together.
    """

    main_input_name = "input_ids"
    _is_stateful = True  # Each member keeps its own kind of state: there is no cache to crop.

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
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self.eval()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        **kwargs: object,
    ) -> Seq2SeqLMOutput:
        """Returns log-probabilities of the token after each target token, (batch, target length, vocabulary).

        Args:
            input_ids: Source tokens, (batch, source length).
            attention_mask: 1 on source tokens, 0 on padding, (batch, source length).
            decoder_input_ids: Target tokens shifted right, (batch, target length).
        """
        reject_unused(kwargs)
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        logits = [member(**given, use_cache=False).logits for member in self.members]
        return Seq2SeqLMOutput(logits=torch.log_softmax(mean_logits(logits).float(), -1))

    def save_pretrained(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuses to save, because an ensemble is nothing but its members."""
        raise ValueError("An ensemble cannot be saved: save its members, and name them all to use it again.")

    def start_decoding(self, sources: BaseModelOutput, mask_NS: torch.Tensor | None) -> DecoderState:
        """Returns the state before the first token of sources that each member encodes itself."""
        given = {"input_ids": sources[0], "attention_mask": mask_NS}
        members: Any = self.members
        return _Together([engine.start_decoding(member, member.get_encoder()(**given), mask_NS) for member in members])

    def _maybe_prepare_encoder_kwargs_for_generation(
        self,
        inputs_tensor: torch.Tensor,
        model_kwargs: dict[str, object],
        model_input_name: str | None,
        settings: object,
    ) -> dict[str, object]:
        if model_input_name not in (None, "input_ids") or model_kwargs.get("encoder_outputs") is not None:
            raise ValueError(
                "An ensemble takes input_ids only: embeddings and encoder outputs belong to a single model."
            )
        # Each member encodes the sources itself: here they stand for their states.
        return {**model_kwargs, "encoder_outputs": BaseModelOutput(inputs_tensor)}

    def _by_engine(self, *asked: Any) -> Any:
        reason = engine.declined(engine.Call(self, *asked))
        if reason is not None:
            raise ValueError(
                f"An ensemble uses the engine's search only, which does not support {reason}: leave it out, "
                "or use a single model."
            )
        return super()._by_engine(*asked)


class _Together:
    """Joint decoding of several models."""

    def __init__(self, states: list[DecoderState]) -> None:
        self.states = states

    def read(self, tokens_NP: torch.Tensor) -> None:
        for state in self.states:
            state.read(tokens_NP)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        return mean_logits([state.step(tokens_NW) for state in self.states])

    def reorder(self, parents_NW: torch.Tensor) -> None:
        for state in self.states:
            state.reorder(parents_NW)

    def select(self, sentences: torch.Tensor) -> None:
        for state in self.states:
            state.select(sentences)


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
