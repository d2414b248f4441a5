"""The fast path of `generate` against the library's own search: same hypotheses and scores, and which one is used."""

import copy
from types import SimpleNamespace

import pytest
import torch
from engines import ENGINES, computed_by
from hypothesis import given, settings
from hypothesis import strategies as st
from library_search import Google, LibrarySearch
from torch import nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model import packed_copies
from vanilla_transformer.model.packed_encoder import PackedEncoder

PAD, START, END, WORDS = 0, 1, 2, 150


def sharp(seed: int, cls=VanillaTransformerForConditionalGeneration, **fields):
    """A random model that is sure of itself, so that sentences end and hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = cls(VanillaTransformerConfig(**{"vocab_size": WORDS, **sizes, **fields})).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2.5)
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.3)
    return model


def sentences(seed: int, lengths: list[int], side: str) -> dict[str, torch.Tensor]:
    """Random sources, padded on a side, `</s>` at each one's end."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(source, lengths, strict=True):
        place = slice(None, length) if side == "right" else slice(-length, None)
        row[place] = torch.cat((torch.randint(3, WORDS, (length - 1,), generator=generator), torch.tensor([END])))
    return {"input_ids": source, "attention_mask": (source != PAD).long()}


@pytest.fixture
def paths_taken(monkeypatch) -> list[str]:
    """Which search each call of `generate` was given to."""
    taken: list[str] = []

    def noted(name: str, search):
        def noting(*args, **kwargs):
            taken.append(name)
            return search(*args, **kwargs)

        return noting

    generation = VanillaTransformerForConditionalGeneration._beam_search.__globals__
    for name in ("fast_beam_search", "fast_greedy_search"):
        monkeypatch.setitem(generation, name, noted("fast", generation[name]))
    for name in ("_beam_search", "_sample"):
        monkeypatch.setattr(GenerationMixin, name, noted("library", getattr(GenerationMixin, name)))
    return taken


def assert_same(ours, theirs) -> None:
    """Same scores, tokens and descent; after the end of a hypothesis ours has padding."""
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-5, rtol=1e-5)
    # The library fills up with what it has ruled out where there are fewer hypotheses than are asked for.
    there = ours.sequences_scores > -1e8
    width = ours.beam_indices.shape[1]
    assert torch.equal(ours.beam_indices[there], theirs.beam_indices[there, :width])
    before = torch.ones(len(there), ours.sequences.shape[1] - width, dtype=torch.bool)
    written = torch.cat((before, ours.beam_indices >= 0), 1) & there[:, None]
    assert torch.equal(ours.sequences[written], theirs.sequences[:, : written.shape[1]][written])
    assert (ours.sequences[:, before.shape[1] :][ours.beam_indices < 0] == PAD).all()


ARCHITECTURES = st.sampled_from(
    [
        {},
        {"d_k": 5, "d_v": 11},
        {"positional_encoding": "learned", "max_position_embeddings": 64},
        {"attention_bias": True, "output_bias": True, "activation_function": "gelu"},
        {"tie_word_embeddings": False, "num_heads": 1},
        {"vocab_size": 64 * 3},
    ]
)
SEARCHES = st.fixed_dictionaries(
    {
        "num_beams": st.integers(2, 6),
        "num_return_sequences": st.integers(1, 2),
        "early_stopping": st.sampled_from(["never", "never", True, False]),
    },
    optional={
        "max_length_beyond_source": st.integers(0, 12),
        "max_new_tokens": st.integers(1, 9),
        "min_new_tokens": st.integers(1, 6),
        "no_repeat_ngram_size": st.just(2),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "bad_words_ids": st.just([[5], [3, 7]]),
        "sequence_bias": st.just([[[9], 2.0], [[4, 5], -3.0]]),
        "suppress_tokens": st.just([PAD, 17]),
        "eos_token_id": st.just([END, 7]),
        "forced_eos_token_id": st.just(END),
        "exponential_decay_length_penalty": st.just((2, 1.5)),
        "renormalize_logits": st.just(True),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    architecture=ARCHITECTURES,
    search=SEARCHES,
    alpha=st.sampled_from([-0.5, 0.0, 0.6, 1.0, 1.7]),
    google=st.booleans(),
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    side=st.sampled_from(["left", "right"]),
)
def test_beam_search_is_the_librarys(seed, architecture, search, alpha, google, lengths, side):
    wanted = {**sentences(seed, lengths, side), **search, "return_dict_in_generate": True}
    theirs = sharp(seed, LibrarySearch, **architecture).generate(
        **wanted, length_penalty=Google(alpha) if google else alpha, output_scores=True
    )
    for engine in ENGINES:
        with computed_by(engine):
            ours = sharp(seed, **architecture).generate(
                **wanted, length_penalty=alpha, length_penalty_type="google" if google else "huggingface"
            )
        assert_same(ours, theirs)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    architecture=ARCHITECTURES,
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    side=st.sampled_from(["left", "right"]),
    search=st.fixed_dictionaries(
        {},
        optional={
            "max_length_beyond_source": st.integers(0, 12),
            "min_new_tokens": st.integers(1, 6),
            "no_repeat_ngram_size": st.just(2),
            "eos_token_id": st.just([END, 7]),
        },
    ),
    whole=st.booleans(),
)
def test_greedy_search_is_the_librarys(seed, architecture, lengths, side, search, whole):
    wanted = {**sentences(seed, lengths, side), **search, "num_beams": 1, "return_dict_in_generate": whole}
    theirs = sharp(seed, LibrarySearch, **architecture).generate(**wanted)
    for engine in ENGINES:
        with computed_by(engine):
            ours = sharp(seed, **architecture).generate(**wanted)
        if not whole:
            assert torch.equal(ours, theirs)
            continue
        assert torch.equal(ours.sequences, theirs.sequences)
        for kept, expected in zip(ours.past_key_values, theirs.past_key_values, strict=True):
            for tensor, wanted_tensor in zip(kept, expected, strict=True):
                if isinstance(tensor, torch.Tensor):
                    torch.testing.assert_close(tensor, wanted_tensor, atol=1e-5, rtol=1e-5)


class Never(LogitsProcessor):
    """Forbids a token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor([5]), -float("inf"))


class Streamed:
    """Takes what a streamer takes."""

    def put(self, value: torch.Tensor) -> None:
        pass

    def end(self) -> None:
        pass


INPUTS = sentences(0, [5, 3, 2], "right")
FAST = {
    "nothing asked for": {},
    "greedy": {"num_beams": 1},
    "several hypotheses": {"num_beams": 5, "num_return_sequences": 5},
    "the library's penalty": {"length_penalty_type": "huggingface", "length_penalty": 2.0},
    "early stopping": {"early_stopping": True},
    "a length": {"max_new_tokens": 4, "min_new_tokens": 4},
    "constraints on a row's own tokens": {"no_repeat_ngram_size": 2, "bad_words_ids": [[5]], "suppress_tokens": [9]},
    "a prefix": {"decoder_input_ids": torch.tensor([[START, 9]]).expand(3, -1)},
    "sampling": {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.7},
    "a dictionary": {"return_dict_in_generate": True},
    "a dictionary of a greedy search": {"return_dict_in_generate": True, "num_beams": 1},
    "weights of 8 bits": {"quantization": "int8"},
}
LIBRARY = {
    "a beam that is sampled": {"do_sample": True, "num_beams": 3},
    "scores of all steps": {"output_scores": True, "return_dict_in_generate": True},
    "logits": {"output_logits": True, "return_dict_in_generate": True},
    "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "no cache": {"use_cache": False},
    "a static cache": {"cache_implementation": "static", "num_beams": 1},
    "a streamer": {
        "streamer": Streamed(),
        "num_beams": 1,
        "input_ids": INPUTS["input_ids"][:1],
        "attention_mask": None,
    },
    "a processor of one's own": {"logits_processor": LogitsProcessorList([Never()])},
    "allowed tokens by row": {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, END]},
    "a criterion of one's own": {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(100)])},
    "a time": {"max_time": 100.0},
    "a mask over a prefix": {
        "decoder_input_ids": torch.tensor([[START, 9]]).expand(3, -1),
        "decoder_attention_mask": torch.ones(3, 2, dtype=torch.long),
    },
    "a beam as wide as the vocabulary": {"num_beams": WORDS},
}


@pytest.mark.parametrize("asked", FAST.values(), ids=FAST)
def test_the_fast_path_supports(paths_taken, asked: dict):
    sharp(0).generate(**{**INPUTS, **asked})
    assert paths_taken == ["fast"]


@pytest.mark.parametrize("asked", LIBRARY.values(), ids=LIBRARY)
def test_the_library_searches_with(paths_taken, asked: dict):
    model = sharp(0)
    model.set_attn_implementation("eager")
    model.generate(**{**INPUTS, **asked})
    assert paths_taken == ["library"]


def with_dropout(model) -> None:
    model.train()


def with_a_hook(model) -> None:
    model.model.decoder.layers[1].feed_forward.register_forward_hook(lambda *_: None)


def with_a_replaced_forward(model) -> None:
    model.forward = model.forward


def with_an_adapter(model) -> None:
    class Adapter(nn.Linear):
        """What a LoRA layer is to its base."""

    old = model.model.decoder.layers[0].cross_attention.q_proj
    model.model.decoder.layers[0].cross_attention.q_proj = Adapter(old.in_features, old.out_features, bias=False)


def with_attention_of_its_own(model) -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    AttentionInterface.register("mine", ALL_ATTENTION_FUNCTIONS["sdpa"])
    AttentionMaskInterface.register("mine", sdpa_mask)
    model.set_attn_implementation("mine")


def without_an_end(model) -> None:
    model.generation_config.eos_token_id = None


@pytest.mark.parametrize(
    "change",
    [with_dropout, with_a_hook, with_a_replaced_forward, with_an_adapter, with_attention_of_its_own, without_an_end],
)
def test_the_library_searches_with_a_model(paths_taken, change):
    model = sharp(0)
    change(model)
    for beams in (1, 4):
        model.generate(**INPUTS, num_beams=beams, max_new_tokens=4)
    assert paths_taken == ["library", "library"]


@pytest.mark.parametrize(
    "asked",
    [{}, {"num_beams": 1}, {"inputs_embeds": torch.randn(3, 5, 16), "input_ids": None}, {"quantization": "int8"}],
    ids=["beam search", "greedy search", "embeddings", "weights of 8 bits"],
)
def test_the_encoder_is_not_asked_in_its_own_way(monkeypatch, asked: dict):
    model = sharp(0)

    def asked_in_its_own_way(self, input_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        raise AssertionError("asked")

    monkeypatch.setattr(type(model.model.encoder), "forward", asked_in_its_own_way)
    model.generate(**{**INPUTS, **asked})


def encoder_with_a_hook(model) -> dict:
    model.model.encoder.layers[0].register_forward_hook(lambda *_: None)
    return {}


def encoder_with_another_layer(model) -> dict:
    class Adapter(nn.Linear):
        """What a LoRA layer is to its base."""

    old = model.model.encoder.layers[0].feed_forward.w_1
    model.model.encoder.layers[0].feed_forward.w_1 = Adapter(old.in_features, old.out_features)
    return {}


def encoder_with_all_its_states(model) -> dict:
    return {"output_hidden_states": True, "return_dict_in_generate": True}


def nothing_left_to_encode(model) -> dict:
    states = model.model.encoder(**INPUTS)
    return {"encoder_outputs": states, "input_ids": None}


@pytest.mark.parametrize(
    ("change", "asked_times"),
    [
        (encoder_with_a_hook, 1),
        (encoder_with_another_layer, 1),
        (encoder_with_all_its_states, 1),
        (with_dropout, 1),
        (nothing_left_to_encode, 0),
    ],
)
def test_the_library_asks_the_encoder(monkeypatch, change, asked_times):
    model = sharp(0)
    asked = change(model) or {}
    asked_of_it = []
    forward = type(model.model.encoder).forward
    monkeypatch.setattr(
        type(model.model.encoder), "forward", lambda *args, **kwargs: asked_of_it.append(1) or forward(*args, **kwargs)
    )
    model.generate(**{**INPUTS, "max_new_tokens": 3, **asked})
    assert len(asked_of_it) == asked_times


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_packed_encoder_is_the_encoder(dtype):
    model = sharp(0, encoder_layers=3, d_k=5, d_v=11, attention_bias=True).to(dtype)
    source = sentences(1, [3, 9, 2, 6], "left")
    with torch.no_grad():
        ours = PackedEncoder(model, dtype)(**source)
        theirs = model.model.encoder(**source).last_hidden_state
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    real = source["attention_mask"].bool()
    torch.testing.assert_close(ours[real], theirs[real], atol=tolerance, rtol=tolerance)


def test_the_library_goes_on_from_a_cache(paths_taken):
    model = sharp(0)
    asked = {**INPUTS, "num_beams": 1, "suppress_tokens": [END], "return_dict_in_generate": True}
    whole = model.generate(**asked, max_new_tokens=6).sequences
    part = model.generate(**asked, max_new_tokens=3)
    # Without the mask the library takes all of the tokens for new ones.
    rest = model.generate(
        **asked,
        max_new_tokens=3,
        decoder_input_ids=part.sequences,
        decoder_attention_mask=torch.ones_like(part.sequences),
        past_key_values=part.past_key_values,
    )
    assert torch.equal(rest.sequences, whole)
    assert paths_taken == ["fast", "fast", "library"]
    empty = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    model.generate(**INPUTS, past_key_values=empty)
    assert paths_taken[-1] == "fast"


def test_a_changed_weight_is_noticed_however_it_was_changed():
    model = sharp(0)

    def agrees() -> bool:
        theirs = sharp(0, LibrarySearch)
        theirs.load_state_dict(model.state_dict())
        wanted = {**INPUTS, "max_new_tokens": 8}
        return torch.equal(model.generate(**wanted), theirs.generate(**wanted))

    before = model.generate(**INPUTS, max_new_tokens=8)
    assert agrees()
    layers = model.model.encoder.layers[0], model.model.decoder.layers[0]
    weights = [*layers[0].parameters(), *layers[1].parameters(), model.lm_head.weight]
    for weight in weights:
        weight.data.mul_(1.3)  # As averages of weights are often kept: no version counts it.
    assert not torch.equal(model.generate(**INPUTS, max_new_tokens=8), before)
    assert agrees()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()
    optimizer.step()
    assert agrees()
    for weight in weights:
        weight.data = weight.data.flip(0).clone()
    assert agrees()
    with torch.no_grad():
        model.model.decoder.layers[0].self_attention.q_proj.weight[3, 1] += 5.0
    assert agrees()
    model.resize_token_embeddings(WORDS + 7)
    assert model.generate(**INPUTS, max_new_tokens=8).max() < WORDS + 7


def test_packed_weights_are_neither_copied_nor_kept_alive():
    model = sharp(0)
    expected = model.generate(**INPUTS)
    assert torch.equal(copy.deepcopy(model).generate(**INPUTS), expected)
    before = len(packed_copies._PACKED)
    del model
    assert len(packed_copies._PACKED) < before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_grad_mode_finds_the_same(mode):
    expected = sharp(1).generate(**INPUTS)
    model = sharp(1)
    with mode():
        found = model.generate(**INPUTS)
    assert torch.equal(found, expected)
    assert torch.equal(model.generate(**INPUTS), expected)
    model.train()
    model(**INPUTS, labels=INPUTS["input_ids"]).loss.backward()


def greatest_difference(scores: torch.Tensor, expected: torch.Tensor) -> float:
    return float((scores - expected).abs().max())


@pytest.mark.processor
@pytest.mark.parametrize("how", ["bfloat16 weights", "autocast"])
def test_bfloat16_computes_in_bfloat16(paths_taken, how: str):
    wanted = {**sentences(3, [6, 9, 4, 5], "right"), "return_dict_in_generate": True, "max_new_tokens": 8}
    expected = sharp(4).generate(**wanted).sequences_scores
    model = sharp(4)
    if how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found = model.generate(**wanted).sequences_scores
    else:
        found = model.to(torch.bfloat16).generate(**wanted).sequences_scores
    assert paths_taken == ["fast", "fast"]
    assert 1e-5 < greatest_difference(found, expected) < 0.2


@pytest.mark.processor
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_8_bits_find_nearly_the_same(dtype: torch.dtype):
    wanted = {**sentences(3, [6, 9, 4, 5], "right"), "return_dict_in_generate": True, "max_new_tokens": 8}
    sizes = {"d_model": 64, "d_ff": 128, "attention_bias": True, "activation_function": "gelu"}
    expected = sharp(4, **sizes).generate(**wanted)
    found = sharp(4, **sizes).to(dtype).generate(**wanted, quantization="int8")
    assert 1e-5 < greatest_difference(found.sequences_scores, expected.sequences_scores) < 0.2


def test_weights_of_8_bits_are_refused_where_they_cannot_be_had():
    model = sharp(0)
    with pytest.raises(ValueError, match="'int8' cannot be combined with output_logits=True: leave one of them out"):
        model.generate(**INPUTS, quantization="int8", output_logits=True)
    with pytest.raises(ValueError, match="quantization must be None or 'int8', not 'int4'"):
        model.generate(**INPUTS, quantization="int4")


def test_weights_of_8_bits_are_refused_in_one_sentence_by_a_torch_without_them(monkeypatch):
    monkeypatch.setattr(torch.ops, "quantized", object())
    with pytest.raises(ValueError, match="'int8' cannot be combined with torch .*, which no longer has 8-bit"):
        sharp(0).generate(**INPUTS, quantization="int8")


def test_weights_of_8_bits_are_refused_where_torch_was_built_without_them(monkeypatch):
    monkeypatch.setattr(torch.backends, "quantized", SimpleNamespace(engine="none"))
    with pytest.raises(ValueError, match="'int8'.* torch .*, which was built without 8-bit"):
        sharp(0).generate(**INPUTS, quantization="int8")


def test_quantization_can_be_the_models_own_setting(tmp_path):
    model = sharp(0, d_model=64)
    model.generation_config.quantization = "int8"
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generation_config.quantization == "int8"
    assert torch.equal(loaded.generate(**INPUTS), model.generate(**INPUTS))
    plain = sharp(0, d_model=64)
    plain.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(**INPUTS, quantization="int8"), model.generate(**INPUTS))
    given = GenerationConfig(num_beams=4, max_new_tokens=5, quantization="int8")
    assert loaded.generate(**INPUTS, generation_config=given).shape[1] <= 6
