"""Compares `generate` with the library's own on the same model, over random settings: sequences, scores and refusals.

`python -m scripts.stress.differential --settings 1000`. This script states again, from the documentation, what a call
of ours means, as a call of `GenerationMixin.generate` with every setting explicit: beam and penalty, limits, criteria.
The library's class of the model has none of our search. Weights are edited between two calls; a static cache is
compared with the dynamic one.
"""

import argparse
import copy
import functools
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TopKLogitsWarper,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    engine,
)
from vanilla_transformer.model.generation import paper_generation_config

PAD, START, END, WORDS = 0, 1, 2, 150
TOLERANCE = 1e-5
# The score of the padding that the library adds where there is no hypothesis.
RULED_OUT = -1e8
# Settings that the library accepts only in one configuration.
TOGETHER = {"num_beams", "num_return_sequences", "do_sample", "length_penalty_type", "max_new_tokens", "pad_token_id"}


class LibraryModel(VanillaTransformerForConditionalGeneration):
    """Our model, without anything of our `generate`."""

    # A search may become longer than `max_length`, except with a static cache.
    may_grow = True
    generate = GenerationMixin.generate
    prepare_inputs_for_generation = GenerationMixin.prepare_inputs_for_generation
    _maybe_prepare_encoder_kwargs_for_generation = GenerationMixin._maybe_prepare_encoder_kwargs_for_generation
    _sample = GenerationMixin._sample

    def _beam_search(  # type: ignore[override]
        self, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **kwargs: Any
    ) -> Any:
        """Calls the library's search with room for a caller's `MaxLengthCriteria`; beyond it, it raises IndexError."""
        lengths = [part.max_length for part in stopping_criteria if type(part) is MaxLengthCriteria]
        if self.may_grow and min(lengths, default=0) > generation_config.max_length:
            generation_config = copy.copy(generation_config)
            generation_config.max_length = min(lengths)
        search: Any = GenerationMixin._beam_search
        return search(self, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)


class Google(float):
    """A power that makes the library's search divide by ((5 + length) / 6)^α."""

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5.0 + length) / 6.0) ** float(self)


class AtMost(StoppingCriteria):
    """Ends each row at its own number of new tokens."""

    def __init__(self, limits: list[int], prompt_length: int) -> None:
        self.limits, self.prompt_length = torch.tensor(limits), prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Returns True for each row that is this long; the rows of a sentence are adjacent."""
        rows = self.limits.repeat_interleave(len(input_ids) // len(self.limits))
        return input_ids.shape[1] >= self.prompt_length + rows


class EvenSum(StoppingCriteria):
    """A caller's own criterion: ends rows of four tokens or more whose sum is a multiple of three."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Returns True for each row that ends."""
        return (input_ids.sum(1) % 3 == 0) & (input_ids.shape[1] > 3)


class Without(LogitsProcessor):
    """A caller's own processor: forbids a token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores without the token."""
        return scores.index_fill(1, torch.tensor([self.token]), -float("inf"))


@dataclass
class Setting:
    """A call, as a user makes it.

    Attributes:
        fields: Fields of the model's configuration.
        own: The kind of settings that the model has itself.
        source: Tokens of the sources, padded.
        form: The form in which the source is passed.
        masked: True if its mask is passed too.
        request: Settings of `generate`.
        by: The way in which the settings are passed.
        criteria: The caller's stopping criteria, by kind and value.
        edit: The edit of the weights between a first call and the one that is compared.
        frozen: True if the compared call is made inside `frozen`.
    """

    seed: int
    fields: dict[str, Any]
    implementation: str
    own: str
    source: list[list[int]]
    form: str
    masked: bool
    request: dict[str, Any]
    by: str
    criteria: list[tuple[str, Any]] = field(default_factory=list)
    processors: list[tuple[str, Any]] = field(default_factory=list)
    allowed: bool = False
    prompts: list[list[int]] | None = None
    prompt_mask: bool = False
    static: bool = False
    edit: str | None = None
    frozen: bool = False


def draw_setting(seed: int) -> Setting:
    """Draws a setting from a seed; the same seed gives the same setting."""
    draw = random.Random(seed)

    def perhaps(share: float) -> bool:
        return draw.random() < share

    fields: dict[str, Any] = draw.choice(
        [
            {},
            {},
            {"d_k": 5, "d_v": 11},
            {"positional_encoding": "learned", "max_position_embeddings": 64},
            {"attention_bias": True, "output_bias": True, "activation_function": "gelu"},
            {"tie_word_embeddings": False, "num_heads": 1},
            {"vocab_size": 192},
        ]
    )
    lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 5))]
    if len(lengths) > 1 and perhaps(0.1):
        lengths[draw.randrange(len(lengths))] = 0
    left = perhaps(0.4)
    source = []
    for length in lengths:
        row = [*(draw.randrange(3, WORDS) for _ in range(length - 1)), END][:length]
        padding = [PAD] * (max(lengths) - length)
        source.append(padding + row if left else row + padding)
    setting = Setting(
        seed=seed,
        fields=fields,
        implementation=draw.choice(["sdpa", "sdpa", "eager"]),
        own=draw.choice(["paper", "paper", "paper", "greedy", "library", "length", "trainer"]),
        source=source,
        form=draw.choice(["input_ids", "input_ids", "inputs", "inputs_embeds", "encoder_outputs"]),
        masked=perhaps(0.9),
        request=_draw_request(draw),
        by=draw.choice(["keyword", "keyword", "object", "both"]),
    )
    request = setting.request
    if request.get("num_return_sequences", 1) > 1 and not (request.get("num_beams") or request.get("do_sample")):
        setting.by = "keyword"  # The library refuses such a configuration.
    setting.criteria = [
        criterion
        for share, criterion in (
            (0.12, ("length", draw.randint(1, 12))),
            (0.05, ("length", draw.randint(1, 12))),
            (0.12, ("ends", draw.sample(range(3, WORDS), draw.choice([1, 5, 30])))),
            (0.06, ("string", draw.choice(["c", "M", "am"]))),
            (0.05, ("time", draw.choice([0.0, 1e12]))),
            (0.06, ("own", None)),
        )
        if perhaps(share)
    ]
    setting.processors = [
        processor
        for share, processor in (
            (0.05, ("without", draw.randrange(3, WORDS))),
            (0.04, ("repetition", 1.4)),
            (0.03, ("top k", 9)),
        )
        if perhaps(share)
    ]
    setting.allowed = perhaps(0.03)
    if perhaps(0.25):
        setting.prompts, setting.prompt_mask = _draw_prompts(draw, len(lengths), setting.request)
        setting.static = setting.prompt_mask and perhaps(0.5)
    setting.static |= perhaps(0.04)
    setting.edit = draw.choice(["a row", "a number", "all but a row", "in place", "another tensor", *[None] * 7])
    setting.frozen = perhaps(0.5)
    return setting


def _draw_request(draw: random.Random) -> dict[str, Any]:
    beams = draw.randint(1, 5)
    choices: dict[str, tuple[float, Any]] = {
        "num_beams": (0.7, beams),
        "length_penalty": (0.3, draw.choice([-0.5, 0.0, 0.6, 1.0, 1.7])),
        "length_penalty_type": (0.2, draw.choice(["google", "huggingface"])),
        "early_stopping": (0.3, draw.choice([True, False, "never"])),
        "num_return_sequences": (0.25, draw.randint(1, beams)),
        "do_sample": (0.15, draw.choice([True, True, False])),
        "max_length_beyond_source": (0.35, draw.randint(0, 12)),
        "max_new_tokens": (0.25, draw.randint(1, 12)),
        "max_length": (0.12, draw.choice([2, 7, 20])),
        "min_new_tokens": (0.15, draw.randint(1, 5)),
        "min_length": (0.06, draw.randint(1, 6)),
        "no_repeat_ngram_size": (0.12, draw.choice([1, 2, 3])),
        "repetition_penalty": (0.1, draw.choice([0.8, 1.3])),
        "bad_words_ids": (0.1, draw.choice([[[5], [9]], [[5], [3, 7]]])),
        "sequence_bias": (0.05, [[[9], 2.0], [[4, 5], -3.0]]),
        "suppress_tokens": (0.15, draw.choice([[PAD], [END], [PAD, 17]])),
        "begin_suppress_tokens": (0.05, [END, 21]),
        "forced_bos_token_id": (0.04, 9),
        "forced_eos_token_id": (0.08, END),
        "exponential_decay_length_penalty": (0.05, (2, 1.5)),
        "renormalize_logits": (0.08, True),
        "remove_invalid_values": (0.04, True),
        "eos_token_id": (0.12, draw.choice([[END, 7], [7, 8, 9, 10], 21])),
        "pad_token_id": (0.12, draw.choice([77, END])),
        "decoder_start_token_id": (0.08, draw.choice([9, START])),
        "use_cache": (0.05, False),
        "return_dict_in_generate": (0.5, True),
    }
    request = {name: value for name, (share, value) in choices.items() if draw.random() < share}
    if request.get("do_sample"):
        request |= draw.choice([{}, {"top_k": 5}, {"top_p": 0.7, "temperature": 0.6}])
    if request.get("return_dict_in_generate") and draw.random() < 0.2:
        request["output_scores"] = True
    return request


def _draw_prompts(draw: random.Random, rows: int, request: dict[str, Any]) -> tuple[list[list[int]], bool]:
    start, length = request.get("decoder_start_token_id", START), draw.randint(1, 4)
    words = [[draw.randrange(3, WORDS) for _ in range(length)] for _ in range(rows)]
    kind = draw.choice(["without start", "with start", "padded", "padded"])
    if kind == "without start":
        return words, False
    if kind == "with start":
        return [[start, *row] for row in words], False
    kept = [draw.randint(0, length) for _ in range(rows)]
    kept[draw.randrange(rows)] = length
    padded = [[PAD] * (length - count) + [start, *row[:count]] for row, count in zip(words, kept, strict=True)]
    return padded, True


@dataclass(frozen=True)
class Found:
    """The result of a call: sequences and other returned values, or the kind of its refusal."""

    sequences: list[list[int]] | None = None
    scores: torch.Tensor | None = None
    steps: tuple[torch.Tensor, ...] | None = None
    lengths: list[int] | None = None
    refusal: str | None = None
    where: str = ""


def compared(setting: Setting) -> tuple[str, str | None]:
    """Returns the path that our call took, and the difference between both results, None if they agree."""
    with _noted_searches() as searches:
        ours = _ours(setting, searches)
    way = "refused" if ours.refusal else "engine" if searches else "library's search"
    return way, _difference(setting, ours, _theirs(setting))


def _difference(setting: Setting, ours: Found, theirs: Found) -> str | None:
    if ours.refusal or theirs.refusal:
        if ours.refusal == theirs.refusal:
            return None
        return f"ours: {ours.refusal or 'no refusal'}; the library's: {theirs.refusal or 'no refusal'}\n{ours.where}"
    assert ours.sequences is not None and theirs.sequences is not None
    padding = setting.request.get("pad_token_id", PAD)
    if len(ours.sequences) != len(theirs.sequences):
        return f"{len(ours.sequences)} rows instead of {len(theirs.sequences)}"
    both = None if ours.scores is None or theirs.scores is None else (ours.scores, theirs.scores)
    if both is not None and not torch.allclose(*both, atol=TOLERANCE, rtol=TOLERANCE):
        return f"scores {both[0].tolist()} instead of {both[1].tolist()}"
    for row, (own, expected) in enumerate(zip(ours.sequences, theirs.sequences, strict=True)):
        length = len(expected)
        if theirs.lengths is not None:  # A beam search of the library does not pad.
            assert theirs.scores is not None
            if theirs.scores[row] < RULED_OUT:
                continue
            length = theirs.lengths[row]
        if own[:length] != expected[:length] or set(own[length:]) - {padding}:
            return f"row {row}: {own} instead of {expected[:length]}"
    for number, (step, expected_step) in enumerate(zip(ours.steps or (), theirs.steps or (), strict=False)):
        if number == 0 and not torch.allclose(step, expected_step, atol=1e-4, rtol=1e-4):
            return f"scores of step {number} differ by {(step - expected_step).abs().max()}"
    return None


@contextmanager
def _noted_searches() -> Iterator[list[str]]:
    """Records the names of the engine's searches that were not declined."""
    noted: list[str] = []
    searches = {name: getattr(engine, name) for name in ("decode", "answer")}

    def noting(name: str) -> Any:
        def search(*args: Any) -> Any:
            found = searches[name](*args)
            if found is not None:
                noted.append(name)
            return found

        return search

    try:
        for name in searches:
            setattr(engine, name, noting(name))
        yield noted
    finally:
        for name, search in searches.items():
            setattr(engine, name, search)


def build(setting: Setting, cls: type = VanillaTransformerForConditionalGeneration) -> Any:
    """Builds a random model with confident predictions, so that sentences end and hypotheses differ."""
    torch.manual_seed(setting.seed)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = cls(VanillaTransformerConfig(**{"vocab_size": WORDS, **sizes, **setting.fields})).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2.5)
        model.get_input_embeddings().weight[END] *= 1.5
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.3)
    model.set_attn_implementation(setting.implementation)
    return model


def own_settings(setting: Setting, config: VanillaTransformerConfig) -> GenerationConfig:
    """Returns the settings that our model has itself."""
    if setting.own == "greedy":
        return paper_generation_config(config, num_beams=1)
    settings = paper_generation_config(config)
    if setting.own == "library":
        settings.update(num_beams=3, length_penalty=1.2, length_penalty_type="huggingface", early_stopping=False)
    elif setting.own == "length":
        settings.max_new_tokens = 6
    elif setting.own == "trainer":
        settings.update(**settings._get_default_generation_params(), defaults_only=True)
    return settings


def inputs_of(setting: Setting, model: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns the source as it is passed: positional and keyword arguments."""
    source = torch.tensor(setting.source)
    mask = source.ne(PAD).long()
    named: dict[str, Any] = {"attention_mask": mask} if setting.masked else {}
    if setting.form == "inputs":
        return [source], named
    if setting.form == "inputs_embeds":
        embeddings = model.get_input_embeddings()
        named["inputs_embeds"] = torch.nn.functional.embedding(source, embeddings.weight).detach()
    elif setting.form == "encoder_outputs":
        with torch.no_grad():
            states = model.get_encoder()(input_ids=source, attention_mask=mask if setting.masked else None)
        named["encoder_outputs"] = BaseModelOutput(last_hidden_state=states.last_hidden_state)
    else:
        named["input_ids"] = source
    return [], named


def _edited(model: Any, edit: str) -> None:
    """Changes weights as users do."""
    weight = model.get_input_embeddings().weight
    if edit == "a row":
        weight.data[21] = weight.data[9] * 1.1
    elif edit == "a number":
        model.model.decoder.layers[1].feed_forward.w_1.weight.data[3, 7] += 4.0
    elif edit == "all but a row":
        weight.data[:-1] *= 1.2
    elif edit == "in place":
        with torch.no_grad():
            model.model.encoder.layers[0].self_attention.v_proj.weight.mul_(-1.0)
    else:
        projection = model.model.decoder.layers[0].cross_attention.q_proj
        projection.weight.data = projection.weight.data.flip(0).clone()


def _caller(setting: Setting) -> dict[str, Any]:
    """Returns the caller's arguments that are no settings: criteria, processors, prompts."""
    made: dict[str, Any] = {}
    criteria: list[Any] = []
    for kind, value in setting.criteria:
        if kind == "length":
            criteria.append(MaxLengthCriteria(value))
        elif kind == "ends":
            criteria.append(EosTokenCriteria(value))
        elif kind == "string":
            criteria.append(StopStringCriteria(_tokenizer(), value))
        elif kind == "time":
            criteria.append(MaxTimeCriteria(value, initial_timestamp=0.0))
        else:
            criteria.append(EvenSum())
    if criteria:
        made["stopping_criteria"] = StoppingCriteriaList(criteria)
    processors: list[Any] = []
    for kind, value in setting.processors:
        if kind == "without":
            processors.append(Without(value))
        else:
            processors.append(
                RepetitionPenaltyLogitsProcessor(value) if kind == "repetition" else TopKLogitsWarper(value)
            )
    if processors:
        made["logits_processor"] = LogitsProcessorList(processors)
    if setting.allowed:
        made["prefix_allowed_tokens_fn"] = lambda row, ids: [*range(3 + row, 60 + row), END]
    if setting.prompts is not None:
        prompts = torch.tensor(setting.prompts)
        made["decoder_input_ids"] = prompts
        if setting.prompt_mask:
            made["decoder_attention_mask"] = prompts.ne(PAD).long()
    return made


def _ours(setting: Setting, noted: list[str]) -> Found:
    model = build(setting)
    model.generation_config = own_settings(setting, model.config)
    if setting.edit is not None:
        model.generate(torch.tensor([[5, END]]), max_new_tokens=2)
        noted.clear()
        _edited(model, setting.edit)
    request = dict(setting.request)
    if setting.static:
        request["cache_implementation"] = "static"
    placed, named = inputs_of(setting, model)
    named |= _caller(setting)
    if setting.by == "keyword":
        named |= request
        if placed and "stopping_criteria" in named:  # They may be positional, too.
            placed += [None, named.pop("logits_processor", None), named.pop("stopping_criteria")]
    else:
        by_name = {name: value for name, value in request.items() if setting.by == "both" and name not in TOGETHER}
        given = {name: value for name, value in request.items() if name not in by_name}
        try:
            named |= {**by_name, "generation_config": GenerationConfig(**given)}
        except ValueError:  # The library's own refusal, which a call by keyword raises a little later.
            return Found(refusal=ValueError.__name__, where=traceback.format_exc(limit=-3))
    with model.frozen() if setting.frozen else nullcontext():
        return _found(setting, model, placed, named)


def _theirs(setting: Setting) -> Found:
    """Makes the same call with the library's own settings alone."""
    model = build(setting, LibraryModel)
    model.may_grow = not setting.static
    if setting.edit is not None:
        _edited(model, setting.edit)
    request, own = dict(setting.request), own_settings(setting, model.config).to_dict()
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=START, eos_token_id=END)
    model.generation_config.decoder_start_token_id = START
    placed, named = inputs_of(setting, model)
    named |= _caller(setting)
    asked_type = request.pop("length_penalty_type", own["length_penalty_type"])
    if request.get("do_sample") and "num_beams" not in request:
        request["num_beams"] = 1
    request.setdefault("num_beams", own["num_beams"])
    if request["num_beams"] > 1:
        google = asked_type == "google"
        for name, paper in (("length_penalty", 0.6), ("early_stopping", "never")):
            of_model = own[name] if own[name] is not None else (paper if google else None)
            if of_model is not None:
                request.setdefault(name, of_model)
        if google:
            request["length_penalty"] = Google(request["length_penalty"])
    else:
        request.pop("length_penalty", None)
        request.pop("early_stopping", None)
    _limited(setting, request, own, named)
    if request["num_beams"] > 1 and request.get("pad_token_id", PAD) == PAD:
        request["pad_token_id"] = PAD
    return _found(setting, model, placed, {**named, **request, "return_dict_in_generate": True, "output_scores": True})


def _limited(setting: Setting, request: dict[str, Any], own: dict[str, Any], named: dict[str, Any]) -> None:
    """States the length limits in the library's settings."""
    beyond = request.pop("max_length_beyond_source", None)
    if "max_new_tokens" in request or "max_length" in request:
        if own["max_new_tokens"] is not None:  # The library prefers this limit, whatever its source.
            request.setdefault("max_new_tokens", own["max_new_tokens"])
        return
    if beyond is None and own["max_new_tokens"] is not None:
        request["max_new_tokens"] = own["max_new_tokens"]
        return
    beyond = own["max_length_beyond_source"] if beyond is None else beyond
    source = torch.tensor(setting.source)
    if setting.masked or setting.form in ("inputs", "input_ids"):
        limits = (source.ne(PAD).sum(1) + beyond).tolist()
    else:
        limits = [source.shape[1] + beyond] * len(source)
    prompt_length = 1
    if setting.prompts is not None:
        start = request.get("decoder_start_token_id", START)
        prompt_length = len(setting.prompts[0]) + all(row[0] != start for row in setting.prompts)
    if "max_position_embeddings" in setting.fields:
        limits = [min(limit, 64 - prompt_length + 1) for limit in limits]
    request["max_length"] = max(limits) + prompt_length
    criteria = [*named.get("stopping_criteria", ()), AtMost(limits, prompt_length)]
    named["stopping_criteria"] = StoppingCriteriaList(criteria)


def _found(setting: Setting, model: Any, placed: list[Any], named: dict[str, Any]) -> Found:
    torch.manual_seed(setting.seed)
    try:
        found = model.generate(*placed, **named)
    except Exception as error:
        return Found(refusal=type(error).__name__, where=traceback.format_exc(limit=-3))
    if isinstance(found, torch.Tensor):
        return Found(found.tolist())
    beams = found.get("beam_indices")
    written = None
    if beams is not None:
        prompt_length = found.sequences.shape[1] - beams.shape[1]
        written = (prompt_length + beams.ge(0).sum(1)).tolist()
    return Found(found.sequences.tolist(), found.get("sequences_scores"), found.get("scores"), written)


@functools.cache
def _tokenizer() -> VanillaTransformerTokenizer:
    """Trains a tokenizer of bytes, for strings that end a sentence."""
    return VanillaTransformerTokenizer.train(["a b c"], vocab_size=260, algorithm="character")


def main() -> int:
    """Compares the given number of settings; returns 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=1000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    ways: Counter[str] = Counter()
    begun, different = time.perf_counter(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.settings):
        setting = draw_setting(seed)
        way, told = compared(setting)
        ways[way] += 1
        if told is not None:
            different += 1
            print(f"--seed {seed} --settings 1: {told}\n  {setting}", flush=True)
    seconds = time.perf_counter() - begun
    told_ways = ", ".join(f"{way} {count}" for way, count in ways.most_common())
    print(f"{arguments.settings} settings in {seconds:.0f} s, {different} different ({told_ways})")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
