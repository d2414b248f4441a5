"""The settings of a search, with their defaults, limits and checks.

The ONNX graph, the exports, the explorer and `Translator` share this module, which requires neither torch nor
transformers. `model/generation_vanilla_transformer.py` repeats the defaults because it also runs without this package.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from vanilla_transformer.errors import ModelError, SettingError, check_number

# A configuration or settings, as in `config.json` and `generation_config.json`, or as arguments of `generate`.
Json = Mapping[str, Any]


def words(text: str) -> frozenset[str]:
    """Returns the set of names in a text."""
    return frozenset(text.split())


# Defaults by the type of length penalty: section 6.1's values for Google's penalty, and otherwise the defaults of
# transformers. With "never", the search stops only when no running hypothesis can still become one of the best.
DEFAULTS: dict[str, dict[str, Any]] = {
    "google": {"length_penalty": 0.6, "early_stopping": "never"},
    "huggingface": {"length_penalty": 1.0, "early_stopping": False},
}
# The default limit of transformers, which applies if a model and a call set no limit.
_NEW_TOKENS = 20
# With larger exponents, the scores of long translations overflow to NaN or underflow to the same number.
MAX_LENGTH_PENALTY = 10
# No memory is large enough for more.
MAX_BEAMS, MAX_LENGTH = 10_000, 1_000_000
# The settings that limit the length of a translation.
LENGTH_LIMITS = ("max_length_beyond_source", "max_new_tokens", "max_length")
# The settings that the ONNX graph supports.
_FOLLOWED = words(
    "bad_words_ids decoder_start_token_id early_stopping eos_token_id forced_eos_token_id length_penalty "
    "length_penalty_type max_length max_length_beyond_source max_new_tokens min_length min_new_tokens num_beams "
    "num_return_sequences pad_token_id renormalize_logits suppress_tokens"
)
# The settings of one token, of one or several tokens, of a list of tokens, and of yes or no.
_TOKEN = words("bos_token_id decoder_start_token_id forced_bos_token_id pad_token_id")
_ENDS = words("eos_token_id forced_eos_token_id")
_TOKENS = words("begin_suppress_tokens suppress_tokens")
_YES_OR_NO = words("do_sample remove_invalid_values renormalize_logits use_cache")
# Values that have no effect, in addition to None and to the value in the model's configuration. False equals 0.
_NEUTRAL: dict[str, object] = {
    **dict.fromkeys(words("begin_suppress_tokens suppress_tokens"), []),
    **dict.fromkeys(words("do_sample diversity_penalty min_length min_new_tokens remove_invalid_values"), 0),
    **dict.fromkeys(words("encoder_no_repeat_ngram_size no_repeat_ngram_size"), 0),
    **dict.fromkeys(words("encoder_repetition_penalty guidance_scale num_beam_groups repetition_penalty"), 1),
}
# Settings that never change the hypotheses, because they only affect sampling, an assistant model, or what `generate`
# returns in addition to the hypotheses.
WITHOUT_EFFECT = words(
    "alignment_heads alignment_step assistant_confidence_threshold assistant_lookbehind bos_token_id cache_config "
    "cache_implementation epsilon_cutoff eta_cutoff num_assistant_tokens num_assistant_tokens_schedule "
    "output_attentions output_hidden_states output_logits output_scores quantization return_dict_in_generate "
    "target_lookbehind temperature top_k top_p transformers_version typical_p use_cache"
)


def not_followed(settings: Json, config: Json, followed: Collection[str] = _FOLLOWED) -> list[str]:
    """Returns the settings of `generate` that are not supported although they have an effect, unknown ones included.

    Of bad_words_ids, only single tokens are supported.
    """

    def is_followed(name: str, value: Any) -> bool:
        if name.startswith("_") or name in WITHOUT_EFFECT or value in (None, _NEUTRAL.get(name), config.get(name)):
            return True
        return name in followed and (name != "bad_words_ids" or all(len(tokens) == 1 for tokens in value))

    return [name for name, value in settings.items() if not is_followed(name, value)]


def with_defaults(settings: Json) -> dict[str, Any]:
    """Returns the settings that are not None, and the defaults of a missing beam, length penalty or early stopping."""
    given = {name: value for name, value in settings.items() if value is not None}
    kind = given.get("length_penalty_type", "huggingface")
    check_search(length_penalty_type=kind)
    return {"num_beams": 1, "num_return_sequences": 1, "length_penalty_type": kind, **DEFAULTS[kind], **given}


def limit_of_new_tokens(settings: Json) -> int | None:
    """Returns the limit of new tokens that is the same for all sentences; None if it depends on the source's length.

    `max_length_beyond_source` allows as many tokens as the source has, plus this number. A `max_new_tokens` or
    `max_length` takes precedence.
    """
    beyond, limit, length = map(settings.get, LENGTH_LIMITS)
    # `Seq2SeqTrainer` adds all defaults of transformers to the settings of its model, and saves them. So a max_length
    # of 20 was not chosen by the user if there is also a setting that does not apply to translation.
    is_written = length == _NEW_TOKENS and settings.get("assistant_lookbehind") is not None
    if limit is not None or (beyond is not None and (length is None or is_written)):
        return limit
    # max_length includes the token that the decoder starts with.
    return _NEW_TOKENS if length is None else length - 1


def check_search(**settings: object) -> None:
    """Raises SettingError if a setting of a search has an invalid value; None and other settings are ignored."""
    check_number("num_beams", settings.get("num_beams"), 1, MAX_BEAMS)
    check_number("num_return_sequences", settings.get("num_return_sequences"), 1)
    penalty = settings.get("length_penalty")
    check_number("length_penalty", penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY, whole=False)
    check_number("max_length_beyond_source", settings.get("max_length_beyond_source"), 0, MAX_LENGTH)
    # max_length includes the token that the decoder starts with.
    for name, minimum in {"max_length": 2, "max_new_tokens": 1, "min_length": 0, "min_new_tokens": 0}.items():
        check_number(name, settings.get(name), minimum)
    values: dict[str, tuple[object, ...]] = dict.fromkeys(_YES_OR_NO, (True, False))
    values |= {"early_stopping": (True, False, "never"), "length_penalty_type": tuple(DEFAULTS)}
    for name, allowed in values.items():
        if settings.get(name) not in (None, *allowed):
            raise SettingError(f"{name} must be {' or '.join(map(repr, allowed))}, not {settings[name]!r}.")


def check_tokens(settings: Json, vocabulary: int) -> None:
    """Raises SettingError if a setting has a token that is not in a vocabulary of this size; None is ignored."""

    def are_tokens(value: Any) -> bool:
        return isinstance(value, list | tuple) and all(type(one) is int and 0 <= one < vocabulary for one in value)

    for name, value in settings.items():
        if value is None:
            continue
        if name in _TOKEN | _ENDS and not are_tokens([value]) and not (name in _ENDS and value and are_tokens(value)):
            kind = "the id of a token" if name in _TOKEN else "the id of a token, or a list of ids,"
        elif name in _TOKENS and not are_tokens(value):
            kind = "a list of the ids of tokens"
        elif name == "bad_words_ids" and not (isinstance(value, list | tuple) and all(map(are_tokens, value))):
            kind = "a list of lists of the ids of tokens"
        else:
            continue
        raise SettingError(f"{name} must be {kind} below {vocabulary:,}, not {value!r}.")


@dataclass(frozen=True)
class Settings:
    """The settings of a search in the ONNX graph."""

    num_beams: int
    num_return_sequences: int
    length_penalty: float
    google: bool  # Whether the length penalty is Google's, and not the length penalty of transformers.
    early_stopping: bool | str
    max_length_beyond_source: int  # Tokens that a translation may have more than its source.
    max_new_tokens: int | None  # If it is not None, it replaces the limit that depends on the source.
    min_new_tokens: int  # Tokens that precede the first end token.
    max_positions: int | None  # The number of learned positions; None if positions are unlimited.
    start: int
    padding: int
    ends: tuple[int, ...]
    suppressed: tuple[int, ...]
    forced_end: tuple[int, ...] | None  # One of these tokens is forced at the length limit.
    renormalized: bool  # Whether the probabilities sum to one again after tokens are suppressed.

    @classmethod
    def of(cls, config: Json, own: Json, call: Json | None = None) -> Self:
        """Returns the settings of a call, completed by the model's own settings and the defaults.

        Args:
            config: The model's configuration.
            own: The model's settings, as in its `generation_config.json`.
            call: Arguments of `generate`; None means that an argument is not given.

        Raises:
            ModelError: The ONNX graph does not support a setting.
            SettingError: A setting has an invalid value.
        """
        call = {name: value for name, value in (call or {}).items() if value is not None}
        for name in call.keys() - _FOLLOWED - _NEUTRAL.keys() - WITHOUT_EFFECT:
            raise ModelError(f"{name}={call[name]!r}")
        check_tokens(call, config["vocab_size"])
        given: Json = with_defaults({**own, **call})
        for name in not_followed(given, config):
            raise ModelError(f"{name}={given[name]!r}")
        check_search(**given)
        limits = call if call.keys() & set(LENGTH_LIMITS) else given
        if "max_length" in limits:  # In transformers, a max_new_tokens of the model takes precedence.
            limits = {"max_new_tokens": given.get("max_new_tokens"), **limits}
        max_new_tokens = limit_of_new_tokens(limits)
        # As in `generate`, a limit that depends on the source cuts a translation and forces no end.
        forced = None if max_new_tokens is None else given.get("forced_eos_token_id")
        if forced is not None:  # transformers suppresses tokens after it has forced one.
            forced = tuple(token for token in _tokens(forced) if token not in given.get("suppress_tokens", ()))
            if not forced:
                raise ModelError("a forced_eos_token_id that is suppressed")
        learned = config["positional_encoding"] == "learned"
        if learned and (max_new_tokens or 0) > config["max_position_embeddings"]:
            # There `generate` raises an error, and the ONNX graph would cut the translation.
            raise ModelError(f"{max_new_tokens:,} new tokens with {config['max_position_embeddings']:,} positions")
        ends = _tokens(given.get("eos_token_id", config["eos_token_id"]))
        # transformers does not forbid an end as a bad word, only as a suppressed token.
        bad_words = (tokens[0] for tokens in given.get("bad_words_ids", ()) if tokens[0] not in ends)
        forbidden = [*bad_words, *given.get("suppress_tokens", ())]
        settings = cls(
            num_beams=given["num_beams"],
            num_return_sequences=given["num_return_sequences"],
            length_penalty=float(given["length_penalty"]),
            google=given["length_penalty_type"] == "google",
            early_stopping=given["early_stopping"],
            max_length_beyond_source=limits.get("max_length_beyond_source", 0),
            max_new_tokens=max_new_tokens,
            min_new_tokens=given.get("min_new_tokens", given.get("min_length", 1) - 1),
            max_positions=config["max_position_embeddings"] if learned else None,
            start=given.get("decoder_start_token_id", config["decoder_start_token_id"]),
            padding=given.get("pad_token_id", config["pad_token_id"]),
            ends=ends,
            suppressed=tuple(forbidden),
            forced_end=forced,
            renormalized=bool(given.get("renormalize_logits")),
        )
        settings._check(config["vocab_size"])
        return settings

    @property
    def min_candidates(self) -> int:
        """Candidates per hypothesis that include a token that does not end it, as `generate` counts them."""
        return max(2, 1 + len(self.ends))

    def _check(self, vocabulary: int) -> None:
        """Raises ModelError if a vocabulary of this size is too small for the tokens or for the beam."""
        tokens = self.start, self.padding, *self.ends, *self.suppressed, *(self.forced_end or ())
        if not self.ends or any(type(token) is not int or not 0 <= token < vocabulary for token in tokens):
            raise ModelError(f"a token id that is not in the vocabulary of {vocabulary:,} tokens")
        if self.num_beams > 1 and self.min_candidates * self.num_beams > vocabulary:
            raise ModelError(f"num_beams={self.num_beams} with a vocabulary of {vocabulary:,} tokens")
        if self.num_return_sequences > self.num_beams:
            raise ModelError(f"num_return_sequences={self.num_return_sequences} with num_beams={self.num_beams}")


def _tokens(given: int | list[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)
