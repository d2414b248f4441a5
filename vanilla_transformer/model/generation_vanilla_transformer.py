"""Section 6.1: beam search with Google's length penalty and a length limit for each sentence.

The search is the library's. Where the package is installed, its engine does the same faster; it declines whatever it
does not know.
"""

import copy
import os
from typing import Any, ClassVar, Literal

import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

try:  # A saved model does not copy what is imported in a `try`.
    from vanilla_transformer import engine
except ImportError:
    engine = None  # type: ignore[assignment]

_PAPER_EXPONENT = 0.6
# Settings of a beam: the paper's values; without a beam the library's defaults apply.
_PAPER_BEAM = {"length_penalty": _PAPER_EXPONENT, "early_stopping": "never"}
_NO_BEAM = {"length_penalty": 1.0, "early_stopping": False}
# Fills finished rows until the search is over; it is no token's id, so it cannot be mistaken for one.
_UNFILLED = -1


class GoogleLengthPenalty(float):
    """α of the length penalty ((5 + |Y|) / 6)^α that divides a hypothesis's log-probability (Wu et al. 2016, Eq. 14).

    A search divides by `length ** length_penalty`: this number gives that power Google's meaning, so that selecting,
    finishing and stopping all follow it.
    """

    offset, divisor = 5.0, 6.0

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((self.offset + length) / self.divisor) ** float(self)


class SourceLengthLimit(StoppingCriteria):
    """Ends each hypothesis at the limit of new tokens of its own sentence.

    Attributes:
        eos_token_id: The library pads rows that have ended only where a criterion has this, whatever its value.

    Args:
        limits: New tokens allowed for each sentence, (sentences,).
        prompt_length: Tokens that the decoder starts with.
    """

    eos_token_id = None

    def __init__(self, limits: torch.Tensor, prompt_length: int) -> None:
        self.limits, self.prompt_length = limits, prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: object) -> torch.Tensor:
        """Marks the rows that have reached their sentence's limit; the rows of one sentence are adjacent."""
        limits = self.limits.to(input_ids.device).repeat_interleave(input_ids.shape[0] // len(self.limits))
        return input_ids.shape[1] - self.prompt_length >= limits


class ForcedEndAtLimit(LogitsProcessor):
    """Makes the last token that a sentence's limit allows one that ends it, as `forced_eos_token_id` asks.

    Args:
        limit: The limit.
        ends: The tokens, one or several.
    """

    def __init__(self, limit: SourceLengthLimit, ends: int | list[int]) -> None:
        self.limit, self.ends = limit, torch.as_tensor(ends, dtype=torch.long).flatten()

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Rules out everything else in the rows that are about to reach their limit."""
        following = torch.nn.functional.pad(input_ids, (0, 1))
        last = self.limit(following, scores)[:, None]  # type: ignore[arg-type]
        only_ends = torch.full_like(scores[:1], -torch.inf).index_fill_(1, self.ends.to(scores.device), 0.0)
        return torch.where(last, only_ends, scores)  # type: ignore[return-value]


def paper_generation_config(
    config: PreTrainedConfig,
    num_beams: int = 4,
    length_penalty: float = _PAPER_EXPONENT,
    length_penalty_type: Literal["google", "huggingface"] = "google",
    max_length_beyond_source: int = 50,
) -> GenerationConfig:
    """Returns the settings of section 6.1: beam 4, α = 0.6, source length + 50 tokens, exact early stopping.

    The paper chose beam and α on the development set, and a recipe may too; one beam is greedy search, without α.
    Two settings are this package's own: `length_penalty_type` ("google", or "huggingface" for the library's
    length^penalty) and `max_length_beyond_source` (None for no limit but the library's).
    """
    of_beams = {"length_penalty": length_penalty, "early_stopping": "never"} if num_beams > 1 else {}
    return GenerationConfig(
        num_beams=num_beams,
        **of_beams,
        length_penalty_type=length_penalty_type,
        max_length_beyond_source=max_length_beyond_source,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


class _Asked:
    """The settings of a call: its arguments, then its `generation_config`, then the model's own.

    As in the library's `generate`, None as an argument is a value; None in a configuration means not set.
    """

    def __init__(self, kwargs: dict[str, object], given: GenerationConfig | None, model: Any) -> None:
        self.kwargs, self.given, self.own = kwargs, given, model.generation_config
        for name, value in model.own_settings.items():
            if not hasattr(self.own, name):  # The library refuses a call's setting that its configuration lacks.
                setattr(self.own, name, value)

    def said(self, name: str) -> Any:
        """Returns a setting as the call itself gives it."""
        return self.kwargs[name] if name in self.kwargs else getattr(self.given, name, None)

    def effective(self, name: str) -> Any:
        """Returns a setting as the call, the model or the paper gives it, before the library's defaults."""
        value = self.said(name)
        return getattr(self.own, name, None) if value is None and name not in self.kwargs else value

    def search(self) -> dict[str, object]:
        """Returns the settings of the beam and its penalty that the call implies.

        Without a beam there are none, because the library would warn of them. Where Google's penalty has no exponent,
        as in a model of greedy search that is asked for a beam, the paper's is used.

        Raises:
            ValueError: There is no penalty of that name.
        """
        kind = self.effective("length_penalty_type")
        if kind not in ("google", "huggingface"):
            raise ValueError(f"length_penalty_type must be 'google' or 'huggingface', not {kind!r}.")
        meant: dict[str, Any] = {}
        beams = self.said("num_beams")
        if beams is None:
            beams = meant["num_beams"] = 1 if self.said("do_sample") else self.own.num_beams or 1
        if beams == 1:
            return meant | {name: value for name, value in _NO_BEAM.items() if self.said(name) is None}
        if kind == "google":
            meant |= {name: value for name, value in _PAPER_BEAM.items() if self.effective(name) is None}
            exponent = meant.get("length_penalty", self.effective("length_penalty"))
            meant["length_penalty"] = GoogleLengthPenalty(exponent)
        return meant

    def beyond_source(self) -> int | None:
        """Returns the tokens allowed beyond the source's length, or None where another limit was given.

        If a call gives both a length and this, the length wins, just as `max_new_tokens` beats `max_length` in the
        library.
        """
        call = {**(vars(self.given) if self.given is not None else {}), **self.kwargs}
        for settings in (call, vars(self.own)):
            new, length, beyond = (
                settings.get(name) for name in ("max_new_tokens", "max_length", "max_length_beyond_source")
            )
            # `Seq2SeqTrainer` writes all of the library's defaults into `model.generation_config`, and saves them: a
            # length of 20 beside another that nobody gives to a translator is its own. One that was 20 before cannot
            # be told from it afterwards.
            completed = beyond is not None and settings.get("assistant_lookbehind") is not None
            is_written = length == 20 and completed and "max_length" not in self.kwargs
            if new is not None or (length is not None and not is_written):
                return None
            if beyond is not None or "max_length_beyond_source" in self.kwargs:
                return beyond
        return None


def savable(settings: GenerationConfig) -> GenerationConfig:
    """Returns the settings without those of a beam where there is none: the library refuses to save them."""
    if settings.num_beams not in (None, 1):
        return settings
    kept = copy.deepcopy(settings)
    for name, value in _NO_BEAM.items():
        if getattr(kept, name) != value:
            setattr(kept, name, None)
    return kept


class EngineGenerationMixin(GenerationMixin):
    """The library's `generate`, run by the engine wherever it knows the model and everything asked for.

    Attributes:
        own_settings: Settings of `generate` that only this package has, with their defaults.
    """

    own_settings: ClassVar[dict[str, object]] = {}
    config: Any
    device: torch.device

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        """Generates with the library's `generate`; see its documentation for all arguments.

        Prompts of several lengths are padded on the left.
        """
        return self._generate(_Asked(kwargs, generation_config, self), {}, inputs, *args)

    def _generate(self, asked: _Asked, settings: dict[str, object], inputs: torch.Tensor | None, *args: Any) -> Any:
        """Calls the library's `generate` with these settings in place of the call's own."""
        generation_config = copy.deepcopy(asked.given)
        kwargs: dict[str, Any] = {**asked.kwargs, **settings}
        if generation_config is not None:
            kwargs = {name: value for name, value in asked.kwargs.items() if name not in settings}
            # By now the object knows this package's own settings: the library refuses names it does not know.
            generation_config.update(**settings, allow_custom_entries=True)
        return super().generate(inputs, generation_config, *args, **kwargs)  # type: ignore[misc]

    def _beam_search(  # type: ignore[override]
        self, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **kwargs: Any
    ) -> Any:
        asked = input_ids, logits_processor, stopping_criteria, generation_config
        found = self._by_engine(*asked, kwargs)
        if found is not None:
            return found
        # The library fills finished rows with `pad_token_id or eos_token_id`, and our padding is 0.
        padding = getattr(generation_config, "_pad_token_tensor", None)
        generation_config._pad_token_tensor = torch.tensor(_UNFILLED, device=input_ids.device)
        # The library gives the scores of hypotheses only with those of all steps.
        of_steps, generation_config.output_scores = generation_config.output_scores, True
        outputs: Any = super()._beam_search(*asked, **kwargs)  # type: ignore[misc]
        if not of_steps and not isinstance(outputs, torch.Tensor):
            outputs.scores = None
        padding = self.config.pad_token_id if padding is None else int(padding)
        if padding is not None:
            sequences = outputs if isinstance(outputs, torch.Tensor) else outputs.sequences
            sequences.masked_fill_(sequences == _UNFILLED, padding)
        return outputs

    def _sample(  # type: ignore[override]
        self, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **kwargs: Any
    ) -> Any:
        asked = input_ids, logits_processor, stopping_criteria, generation_config
        found = self._by_engine(*asked, kwargs)
        return super()._sample(*asked, **kwargs) if found is None else found  # type: ignore[misc]

    def _by_engine(self, *asked: Any) -> Any:
        """Returns the engine's result, or None if the library has to search."""
        return None if engine is None else engine.decode(engine.Call(self, *asked))


class PaperGenerationMixin(EngineGenerationMixin):
    """`generate` with the defaults of section 6.1; everything else is the library's."""

    own_settings = {"length_penalty_type": "huggingface", "max_length_beyond_source": None}

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        """Generates with the library's `generate`; see its documentation for all arguments.

        Without arguments beyond the inputs: beam 4, Google's length penalty with α = 0.6, and for each sentence at
        most its own source length (`</s>` counts on both sides) + 50 new tokens. A call can override each of these:
        `max_new_tokens` or `max_length` the limit, `num_beams` the beam. A setting given by neither the call nor its
        `generation_config` comes from `self.generation_config`, including this package's own settings, so that
        `num_beams=5` and `generation_config=GenerationConfig(num_beams=5)` are the same request. `do_sample=True`
        without `num_beams` samples without a beam.
        """
        encoded = kwargs.get("encoder_outputs")
        if encoded is not None:  # The library repeats the caller's for a beam in place, and cannot repeat a tuple.
            is_tuple = isinstance(encoded, tuple)
            kwargs["encoder_outputs"] = BaseModelOutput(encoded[0]) if is_tuple else copy.copy(encoded)
        asked = _Asked(kwargs, generation_config, self)
        settings, beyond = asked.search(), asked.beyond_source()
        if beyond is not None:
            prompt_length = self._prompt_length(asked, kwargs.get("decoder_input_ids"))
            limits = self._source_lengths(inputs, kwargs) + beyond
            if getattr(self.config, "positional_encoding", None) == "learned":
                # The last new token is never read, so it needs no position.
                limits = limits.clamp(max=self.config.max_position_embeddings - prompt_length + 1)
            limit = SourceLengthLimit(limits, prompt_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or ()), limit])
            longest = int(limits.max())
            ends = asked.effective("forced_eos_token_id")
            suppressed = set(asked.effective("suppress_tokens") or ())
            # The library's own knows one length for all sentences; it refuses ends that are all suppressed.
            if ends is not None and not suppressed.issuperset(torch.as_tensor(ends).flatten().tolist()):
                settings["forced_eos_token_id"] = None
                forced = ForcedEndAtLimit(limit, ends)
                logits_processor = LogitsProcessorList([*(logits_processor or ()), forced])
            if asked.effective("max_new_tokens") is None:
                settings["max_length"] = longest + prompt_length
            else:
                settings["max_new_tokens"] = longest
        return self._generate(asked, settings, inputs, logits_processor, stopping_criteria, *args)

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict[str, Any]) -> torch.Tensor:
        attention_mask = kwargs.get("attention_mask")
        if attention_mask is not None:
            return attention_mask.long().sum(-1)
        input_ids: torch.Tensor | None = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is not None:
            padding = self.config.pad_token_id
            return input_ids.ne(-1 if padding is None else padding).sum(-1)
        states = kwargs.get("inputs_embeds")
        if states is None and kwargs.get("encoder_outputs") is not None:
            states = kwargs["encoder_outputs"][0]
        if states is None:
            return torch.ones(1, dtype=torch.long)  # The library's source is then a single `<s>`.
        return torch.full((states.shape[0],), states.shape[1])

    def _prompt_length(self, asked: _Asked, decoder_input_ids: torch.Tensor | None) -> int:
        """Returns the number of decoder tokens before the first new one; the library adds a missing start token."""
        if decoder_input_ids is None:
            return 1
        start = asked.effective("decoder_start_token_id")
        start = torch.as_tensor(asked.effective("bos_token_id") if start is None else start)
        lacks_start = bool(decoder_input_ids[:, 0].ne(start.to(decoder_input_ids.device)).all())
        return decoder_input_ids.shape[1] + lacks_start

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Prepares inputs as the library does, but keeps a mask over the target's prompt as it was given.

        For a static cache the library turns it into a four-dimensional mask, which no longer shows where a prompt
        begins, so that positions would count its padding.
        """
        mask = kwargs.pop("decoder_attention_mask", None)
        prepared = super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]
        return prepared if mask is None else {**prepared, "decoder_attention_mask": mask.to(self.device)}

    def adjust_generation_fn(
        self, generation_config: GenerationConfig | None, *args: object, **kwargs: object
    ) -> None:
        """Loads the search settings; a checkpoint without a file of them gets the paper's."""
        super().adjust_generation_fn(generation_config, *args, **kwargs)  # type: ignore[misc]
        # The library derives its own from the model's configuration: one beam and 20 tokens.
        if generation_config is None and getattr(self.generation_config, "_from_model_config", False):
            self.generation_config = paper_generation_config(self.config)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: object, **kwargs: object) -> None:
        """Saves as the library does, with search settings that it accepts."""
        chosen = self.generation_config
        self.generation_config = savable(chosen)
        try:
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        finally:
            self.generation_config = chosen
