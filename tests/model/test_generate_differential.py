"""`generate` gives what the library's own gives on random calls: sequences, scores and refusals.

What a call of ours means is stated here again, from the documentation, as a call of `GenerationMixin.generate` with
every setting explicit. `SETTINGS=1000 pytest tests/model/test_generate_differential.py` compares so many calls.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings, strategies as st
from searches import ARCHITECTURES, END, PAD, START, WORDS, Google, LibraryModel, Never, sharp
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.generation_vanilla_transformer import paper_generation_config

# The score of the padding that the library adds where there is no hypothesis.
RULED_OUT = -1e8
# Settings that the library accepts only in one configuration.
TOGETHER = {"num_beams", "num_return_sequences", "do_sample", "length_penalty_type", "max_new_tokens", "pad_token_id"}
# Settings of the model itself.
OWN: dict[str, dict[str, Any]] = {
    "length": {"max_new_tokens": 6},
    "library": {"num_beams": 3, "length_penalty": 1.2, "length_penalty_type": "huggingface", "early_stopping": False},
}
# How often a call has each setting, and its values.
REQUESTS: list[tuple[float, dict[str, list[Any]]]] = [
    (0.7, {"num_beams": [1, 2, 3, 4, 5]}),
    (0.5, {"return_dict_in_generate": [True]}),
    (0.3, {"length_penalty": [-0.5, 0.0, 0.6, 1.0, 1.7], "early_stopping": [True, False, "never"]}),
    (0.25, {"num_return_sequences": [1, 2, 3], "max_new_tokens": [1, 3, 6, 9, 12]}),
    (0.25, {"length_penalty_type": ["google", "huggingface"], "max_length_beyond_source": [*range(13)]}),
    (0.15, {"do_sample": [True, True, False], "min_new_tokens": [1, 3, 5], "suppress_tokens": [[PAD], [END, 17]]}),
    (0.12, {"max_length": [2, 7, 21], "no_repeat_ngram_size": [1, 2, 3], "eos_token_id": [[END, 7], [7, 8, 9], 21]}),
    (0.1, {"repetition_penalty": [0.8, 1.3], "bad_words_ids": [[[5], [3, 7]]], "pad_token_id": [77, END]}),
    (0.07, {"min_length": [1, 3, 6], "forced_eos_token_id": [END], "decoder_start_token_id": [9, START]}),
    (0.05, {"sequence_bias": [[[[9], 2.0], [[4, 5], -3.0]]], "exponential_decay_length_penalty": [(2, 1.5)]}),
    (0.05, {"begin_suppress_tokens": [[END, 21]], "forced_bos_token_id": [9], "renormalize_logits": [True]}),
    (0.05, {"remove_invalid_values": [True], "use_cache": [False]}),
]


def at_most(limits: list[int], prompt_length: int) -> Callable[..., torch.Tensor]:
    """Ends each row at its own number of new tokens; the rows of a sentence are adjacent."""
    ends = prompt_length + torch.tensor(limits)
    return lambda ids, scores, **_: ids.shape[1] >= ends.repeat_interleave(len(ids) // len(ends))


class ThirdSum(StoppingCriteria):
    """A caller's own criterion: ends rows of four tokens or more whose sum is a multiple of three."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids.sum(1) % 3 == 0) & (input_ids.shape[1] > 3)


def draw_call(draw: random.Random, fields: dict[str, Any]) -> SimpleNamespace:
    """A model and a call, as a user makes it."""

    def perhaps(share: float, *values: Any) -> list[Any]:
        return [draw.choice(values)] if draw.random() < share else []

    def words(number: int) -> list[int]:
        return [draw.randrange(3, WORDS) for _ in range(number)]

    lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 5))]
    lengths[1:2] = [0 if draw.random() < 0.1 else length for length in lengths[1:2]]
    left, source = draw.random() < 0.4, []
    for length in lengths:
        row, padding = [*words(length), END][-length:] if length else [], [PAD] * (max(lengths) - length)
        source.append(padding + row if left else row + padding)
    request: dict[str, Any] = {}
    for share, choices in REQUESTS:
        request |= {name: draw.choice(values) for name, values in choices.items() if draw.random() < share}
    if END in request.get("suppress_tokens", ()):  # transformers rejects a configuration with both.
        request.pop("forced_eos_token_id", None)
    request["num_return_sequences"] = min(request.get("num_return_sequences", 1), request.get("num_beams", 2))
    if request.get("do_sample"):
        request |= draw.choice([{}, {"top_k": 5}, {"top_p": 0.7, "temperature": 0.6}])
    if request.get("return_dict_in_generate") and draw.random() < 0.2:
        request["output_scores"] = True
    call = SimpleNamespace(
        seed=draw.randrange(1 << 30),
        fields=fields,
        implementation=draw.choice(["sdpa", "sdpa", "eager"]),
        own=draw.choice(["paper", "paper", "paper", "trainer", "greedy", *OWN]),
        source=source,
        form=draw.choice(["input_ids", "input_ids", "inputs", "inputs_embeds", "encoder_outputs"]),
        masked=draw.random() < 0.9,
        request=request,
        by=draw.choice(["keyword", "keyword", "object", "both"]),
        criteria=[
            *perhaps(0.15, *map(MaxLengthCriteria, range(1, 13))),
            *perhaps(0.12, EosTokenCriteria(words(1)), EosTokenCriteria(words(30))),
            *perhaps(0.05, *(MaxTimeCriteria(seconds, initial_timestamp=0.0) for seconds in (0.0, 1e12))),
            *perhaps(0.06, ThirdSum()),
        ],
        processors=perhaps(0.1, Never()),
        allowed=draw.random() < 0.03,
        prompts=None,
        prompt_mask=draw.random() < 0.5,
        static=draw.random() < 0.1,
    )
    if request["num_return_sequences"] > 1 and not (request.get("num_beams") or request.get("do_sample")):
        call.by = "keyword"  # The library refuses such a configuration.
    if draw.random() < 0.25:
        start, length = request.get("decoder_start_token_id", START), draw.randint(1, 4)
        kept = [length, *(draw.randint(0, length) if call.prompt_mask else length for _ in lengths[1:])]
        first = [start] if call.prompt_mask or draw.random() < 0.5 else []
        call.prompts = [[PAD] * (length - count) + first + words(count) for count in kept]
    return call


def model_of(call: SimpleNamespace, cls: type = VanillaTransformerForConditionalGeneration) -> Any:
    """The call's model, with the settings that ours has itself."""
    model = sharp(call.seed, cls, **call.fields)
    with torch.no_grad():
        model.get_input_embeddings().weight[END] *= 1.5
    model.set_attn_implementation(call.implementation)
    own = paper_generation_config(model.config, **({"num_beams": 1} if call.own == "greedy" else {}))
    own.update(**OWN.get(call.own, {}))
    if call.own == "trainer":
        own.update(**own._get_default_generation_params(), defaults_only=True)
    model.generation_config = own
    return model


def arguments_of(call: SimpleNamespace, model: Any) -> tuple[list[Any], dict[str, Any]]:
    """The source, prompts and a caller's own criteria and processors: positional and keyword arguments."""
    source = torch.tensor(call.source)
    mask = source.ne(PAD).long() if call.masked else None
    placed, named = [source] if call.form == "inputs" else [], {} if mask is None else {"attention_mask": mask}
    if call.form == "inputs_embeds":
        named["inputs_embeds"] = torch.nn.functional.embedding(source, model.get_input_embeddings().weight).detach()
    elif call.form == "encoder_outputs":
        with torch.no_grad():
            states = model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
        named["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
    elif call.form == "input_ids":
        named["input_ids"] = source
    if call.criteria:
        named["stopping_criteria"] = StoppingCriteriaList(call.criteria)
    if call.processors:
        named["logits_processor"] = LogitsProcessorList(call.processors)
    if call.allowed:
        named["prefix_allowed_tokens_fn"] = lambda row, ids: [*range(3 + row, 60 + row), END]
    if call.prompts is not None:
        named["decoder_input_ids"] = prompts = torch.tensor(call.prompts)
        if call.prompt_mask:
            named["decoder_attention_mask"] = prompts.ne(PAD).long()
    return placed, named


def by_ours(call: SimpleNamespace) -> Any:
    model, request = model_of(call), dict(call.request)
    if call.static:
        request["cache_implementation"] = "static"
    placed, named = arguments_of(call, model)
    if call.by == "keyword":
        named |= request
        if placed and "stopping_criteria" in named:  # They may be positional, too.
            placed += [None, named.pop("logits_processor", None), named.pop("stopping_criteria")]
    else:
        apart = {name: value for name, value in request.items() if call.by == "both" and name not in TOGETHER}
        config = GenerationConfig(**{name: value for name, value in request.items() if name not in apart})
        named |= {**apart, "generation_config": config}
    torch.manual_seed(call.seed)
    return model.generate(*placed, **named)


def by_the_library(call: SimpleNamespace) -> Any:
    """The same call with the library's own settings alone."""
    model = model_of(call, LibraryModel)
    request, own = dict(call.request), model.generation_config.to_dict()
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=START, eos_token_id=END)
    model.generation_config.decoder_start_token_id = START
    placed, named = arguments_of(call, model)
    google = request.pop("length_penalty_type", own["length_penalty_type"]) == "google"
    if request.setdefault("num_beams", 1 if request.get("do_sample") else own["num_beams"]) > 1:
        for name, paper in (("length_penalty", 0.6), ("early_stopping", "never")):
            if own[name] is not None or google:
                request.setdefault(name, paper if own[name] is None else own[name])
        if google:
            request["length_penalty"] = Google(request["length_penalty"])
        request.setdefault("pad_token_id", PAD)
    else:
        request = {name: value for name, value in request.items() if name not in ("length_penalty", "early_stopping")}
    beyond, own_limit = request.pop("max_length_beyond_source", None), own["max_new_tokens"]
    if request.keys() & {"max_new_tokens", "max_length"} or (beyond is None and own_limit is not None):
        if own_limit is not None:  # The library prefers this limit, whatever its source.
            request.setdefault("max_new_tokens", own_limit)
    else:
        beyond, source = own["max_length_beyond_source"] if beyond is None else beyond, torch.tensor(call.source)
        counted = source.ne(PAD) if call.masked or call.form in ("inputs", "input_ids") else torch.ones_like(source)
        limits, prompt_length = (counted.sum(1) + beyond).tolist(), 1
        if call.prompts is not None:
            start = request.get("decoder_start_token_id", START)
            prompt_length = len(call.prompts[0]) + all(row[0] != start for row in call.prompts)
        if "max_position_embeddings" in call.fields:
            limits = [min(limit, 64 - prompt_length + 1) for limit in limits]
        request["max_length"] = max(limits) + prompt_length
        request.pop("forced_eos_token_id", None)
        criteria = [*named.get("stopping_criteria", ()), at_most(limits, prompt_length)]
        named["stopping_criteria"] = StoppingCriteriaList(criteria)
    torch.manual_seed(call.seed)
    return model.generate(*placed, **{**named, **request, "return_dict_in_generate": True, "output_scores": True})


def assert_same(call: SimpleNamespace, ours: Any, theirs: Any) -> None:
    scores, beams = theirs.get("sequences_scores"), theirs.get("beam_indices")
    if not isinstance(ours, torch.Tensor):
        if "sequences_scores" in ours:
            torch.testing.assert_close(ours.sequences_scores, scores, atol=1e-5, rtol=1e-5)
        if "scores" in ours and ours.scores:
            torch.testing.assert_close(ours.scores[0], theirs.scores[0], atol=1e-4, rtol=1e-4)
        ours = ours.sequences
    padding = call.request.get("pad_token_id", PAD)
    for row, (own, expected) in enumerate(zip(ours.tolist(), theirs.sequences.tolist(), strict=True)):
        if beams is not None:  # A beam search of the library does not pad.
            if scores[row] < RULED_OUT:
                continue
            expected = expected[: len(expected) - beams.shape[1] + int(beams[row].ge(0).sum())]
        assert own[: len(expected)] == expected and set(own[len(expected) :]) <= {padding}


def found_or_raised(generate: Callable[[SimpleNamespace], Any], call: SimpleNamespace) -> Any:
    try:
        return generate(call)
    except Exception as error:
        return error


def test_generate_is_the_librarys_own():
    results: Counter[str] = Counter()

    @settings(max_examples=int(os.environ.get("SETTINGS", 60)))
    @given(call=st.builds(draw_call, st.randoms(use_true_random=True), ARCHITECTURES))
    def compare(call):
        ours, theirs = found_or_raised(by_ours, call), found_or_raised(by_the_library, call)
        if call.static and isinstance(ours, IndexError):  # A caller's own limit is longer than such a cache.
            call.request["cache_implementation"] = "static"
            theirs = found_or_raised(by_the_library, call)
            assert isinstance(theirs, IndexError)
        if isinstance(theirs, IndexError):
            return  # A caller's own limit is longer than the room that the library's beam search makes.
        if isinstance(ours, Exception):
            results["error"] += 1
            assert type(ours) is type(theirs), (ours, theirs)
            return
        results["tokens"] += 1
        assert_same(call, ours, theirs)

    compare()
    print(dict(results))
    assert results.total() > 4 * results["error"]
