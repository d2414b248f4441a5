"""What a call means is worked out once: a second call is the library's no more, and sees whatever has changed."""

import copy
import threading
from collections import Counter

import pytest
import torch
from engines import engine  # noqa: F401
from library_search import LibrarySearch
from test_fast_generation import END, PAD, sentences, sharp
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList

from vanilla_transformer.model import packed_copies

pytestmark = pytest.mark.usefixtures("engine")
SOURCES = sentences(5, [6, 3, 9], "right")
CALLS = [
    {},
    {"num_beams": 1},
    {"num_beams": 3, "num_return_sequences": 2, "return_dict_in_generate": True},
    {"num_beams": 1, "return_dict_in_generate": True},
    {"max_new_tokens": 5, "min_new_tokens": 3},
    {"max_length_beyond_source": 2, "no_repeat_ngram_size": 2, "bad_words_ids": [[5], [3, 7]]},
    {"quantization": "int8"},
    {"generation_config": GenerationConfig(num_beams=2, max_length=7, early_stopping=True)},
    {"forced_eos_token_id": END, "eos_token_id": [END, 7]},
]


@pytest.fixture
def library(monkeypatch) -> Counter:
    """How often the library's `generate` was asked."""
    asked: Counter = Counter()
    generate = GenerationMixin.generate

    def counting(self, *args, **kwargs):
        asked["generate"] += 1
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(GenerationMixin, "generate", counting)
    return asked


def tokens(found) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found.sequences


def assert_equal(found, expected) -> None:
    assert torch.equal(tokens(found), tokens(expected))
    for name in ("sequences_scores", "beam_indices"):
        if not isinstance(found, torch.Tensor) and name in expected:
            assert torch.equal(found[name], expected[name])
    if not isinstance(found, torch.Tensor) and expected.get("past_key_values") is not None:
        for kept, other in zip(found.past_key_values, expected.past_key_values, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(kept, other, strict=True) if isinstance(a, torch.Tensor))


@pytest.mark.parametrize("call", CALLS)
def test_a_second_call_is_as_the_first_without_the_library(library, call: dict):
    model = sharp(2, positional_encoding="learned", max_position_embeddings=40)
    first = [model.generate(**SOURCES, **call), model.generate(**sentences(1, [5], "right"), **call)]
    asked = library["generate"]
    again = [model.generate(**SOURCES, **call), model.generate(**sentences(1, [5], "right"), **call)]
    assert library["generate"] == asked
    for found, expected in zip(again, first, strict=True):
        assert_equal(found, expected)
    theirs = LibrarySearch(model.config).eval()
    theirs.load_state_dict(model.state_dict())
    if not {"quantization", "generation_config"} & set(call):
        penalty = {"length_penalty": 0.0} if call.get("num_beams") != 1 else {}
        expected = theirs.generate(**SOURCES, **call, **penalty)
        expected = tokens(expected)[:, : tokens(model.generate(**SOURCES, **call, **penalty)).shape[1]]
        found = tokens(model.generate(**SOURCES, **call, **penalty))
        written = found != PAD
        assert torch.equal(found[written], expected[written])


def new_module(model):
    layer = model.model.decoder.layers[1]
    layer.feed_forward = copy.deepcopy(layer.feed_forward)
    layer.feed_forward.w_2.weight.data.neg_()


def layers_in_another_order(model):
    layers = model.model.decoder.layers
    layers._modules = dict(reversed(layers._modules.items()))


def another_activation(model):
    model.model.encoder.layers[0].feed_forward.activation = torch.nn.GELU()


def add_hook(stack: str):
    def hook(model):
        layers = model.model.get_submodule(stack).layers
        layers[0].self_attention.register_forward_hook(lambda module, args, output: (output[0] * 0.5, output[1]))

    return hook


def replaced_forward(model):
    linear = model.model.decoder.layers[0].feed_forward.w_1
    linear.forward = lambda x: torch.nn.functional.linear(x, -linear.weight, linear.bias)


class Negated(LogitsProcessor):
    """Unlikely first."""

    def __call__(self, input_ids, scores):
        return -scores


def own_processors(model):
    get = model._get_logits_processor
    model._get_logits_processor = lambda *args, **kwargs: LogitsProcessorList([*get(*args, **kwargs), Negated()])


# What changes nothing in greedy search, or nothing that is certain.
BEAM_ALONE = {"type", "beam", "penalty", "start", "an activation"}
CHANGES = {
    "beam": lambda model: setattr(model.generation_config, "num_beams", 2),
    "penalty": lambda model: setattr(model.generation_config, "length_penalty", -3.0),
    "ends in place": lambda model: model.generation_config.eos_token_id.extend(range(20, 90)),
    "limit": lambda model: setattr(model.generation_config, "max_length_beyond_source", -2),
    "start": lambda model: setattr(model.generation_config, "decoder_start_token_id", 8),
    "settings": lambda model: setattr(
        model, "generation_config", GenerationConfig(eos_token_id=7, decoder_start_token_id=1, max_length=5)
    ),
    "weights through data": lambda model: model.lm_head.weight.data[3:40].neg_(),
    "weights replaced": lambda model: setattr(
        model.model.decoder.layers[0].self_attention.q_proj,
        "weight",
        torch.nn.Parameter(5 * model.model.decoder.layers[0].self_attention.q_proj.weight.data.flip(0)),
    ),
    "embedding": lambda model: model.model.shared.weight.data[5:60].neg_(),
    "type": lambda model: model.to(torch.float64),
    "a module": new_module,
    "order of layers": layers_in_another_order,
    "an activation": another_activation,
    "hook in the encoder": add_hook("encoder"),
    "hook in the decoder": add_hook("decoder"),
    "forward of an instance": replaced_forward,
    "method of an instance": own_processors,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("call", [{}, {"num_beams": 1}])
def test_a_change_after_two_calls_is_seen(name: str, call: dict):
    call = {"no_repeat_ngram_size": 2, "return_dict_in_generate": True, **call}
    model, untouched = sharp(13), sharp(13)
    for each in (model, untouched):
        each.generation_config.eos_token_id = [END]
    for _ in range(2):
        before = model.generate(**SOURCES, **call)
    for each in (model, untouched):
        CHANGES[name](each)
    found, expected = model.generate(**SOURCES, **call), untouched.generate(**SOURCES, **call)
    assert torch.equal(found.sequences, expected.sequences)
    shows = found.sequences.shape != before.sequences.shape or not torch.equal(found.sequences, before.sequences)
    if found.get("sequences_scores") is not None:
        assert torch.equal(found.sequences_scores, expected.sequences_scores)
        shows |= not torch.equal(found.sequences_scores, before.sequences_scores)
    if name not in (BEAM_ALONE if "num_beams" in call else {"type", "start"}):
        assert shows, "the change must change what is found"


def test_training_and_autocast_are_no_plain_calls(library):
    model = sharp(13)
    model.generate(**SOURCES)
    model.generate(**SOURCES)
    assert library["generate"] == 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.generate(**SOURCES)
    assert library["generate"] == 2
    model.train()
    model.generate(**SOURCES)
    assert library["generate"] == 3


def test_an_argument_of_another_type_is_another_call(library):
    model = sharp(13)
    for value in (True, 1, "never"):
        model.generate(**SOURCES, output_scores=False, num_beams=2, early_stopping="never", use_cache=value)
    assert library["generate"] == 3


@pytest.mark.parametrize("call", [{}, {"num_beams": 1}, {"return_dict_in_generate": True}])
def test_what_is_returned_may_be_written(call: dict):
    model = sharp(13)
    for _ in range(2):
        found = model.generate(**SOURCES, **call)
        tokens(found).add_(1)
        if not isinstance(found, torch.Tensor):
            found.sequences_scores.mul_(2)
            assert not found.sequences_scores.is_inference()
        assert not tokens(found).is_inference()


def test_threads_share_plans_and_packed_weights():
    model, results = sharp(13), {}
    sources = [sentences(seed, [3 + seed % 4], "right") for seed in range(8)]
    expected = [copy.deepcopy(model).generate(**source) for source in sources]

    def call(first: int) -> None:
        for number in [*range(first, 8), *range(first)]:
            results.setdefault(number, []).append(model.generate(**sources[number]))

    threads = [threading.Thread(target=call, args=(2 * first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, found in results.items():
        assert len(found) == 4
        assert all(torch.equal(one, expected[number]) for one in found)


def test_a_model_is_not_kept_alive_by_its_plans():
    import gc
    import weakref

    model = sharp(13)
    model.generate(**SOURCES)
    model.generate(**SOURCES)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.fixture
def compared(monkeypatch) -> Counter:
    """How often weights were compared whole."""
    counted: Counter = Counter()
    whole = packed_copies._Contents.are_those_of

    def counting(self, weights):
        counted["whole"] += 1
        return whole(self, weights)

    monkeypatch.setattr(packed_copies._Contents, "are_those_of", counting)
    return counted


@torch.no_grad()
def test_fixed_weights_are_compared_whole_once(compared):
    model = sharp(13)
    model.generate(**SOURCES)
    assert compared["whole"] == 0
    with model.fixed_weights():
        for _ in range(3):
            model.generate(**SOURCES)
        assert compared["whole"] == 2  # Encoder and decoder.
        # What torch counts is seen all the same.
        model.lm_head.weight[3:40].neg_()
        assert torch.equal(model.generate(**SOURCES), copy.deepcopy(model).generate(**SOURCES))
        model.model.encoder.layers[0].feed_forward.w_1.weight.copy_(torch.randn(32, 16))
        assert torch.equal(model.generate(**SOURCES), copy.deepcopy(model).generate(**SOURCES))
    model.lm_head.weight.data[3:40].neg_()
    assert torch.equal(model.generate(**SOURCES), copy.deepcopy(model).generate(**SOURCES))
    with model.fixed_weights():
        model.lm_head.weight.data[3:40].neg_()
        assert torch.equal(model.generate(**SOURCES), copy.deepcopy(model).generate(**SOURCES)), "before the first"
