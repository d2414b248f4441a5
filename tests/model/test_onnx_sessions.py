"""Small models in sessions of ONNX Runtime: which calls they compute, and that what they find is what torch finds."""

import threading
from types import SimpleNamespace

import pytest
import torch
from engines import computed_by
from test_fast_generation import END, INPUTS, START, assert_same, sentences, sharp
from torch import nn

from vanilla_transformer.model import onnx_graphs, onnx_sessions
from vanilla_transformer.model.onnx_sessions import SessionCache, SessionDecoder, SessionEncoder
from vanilla_transformer.model.packed_decoder import PackedDecoder
from vanilla_transformer.model.packed_encoder import PackedEncoder

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed: pip install 'vanilla-transformer[export]'")
ARCHITECTURES = {
    "the paper's": {},
    "learned positions": {"positional_encoding": "learned", "max_position_embeddings": 64},
    "biases": {"attention_bias": True, "output_bias": True},
    "three embeddings, one head": {"tie_word_embeddings": False, "num_heads": 1},
    "narrow heads": {"d_k": 3, "d_v": 3},
}
CALLS = {
    "beam": {"num_return_sequences": 4},
    "beam of early ends": {"num_beams": 3, "eos_token_id": [END, *range(50, 90)]},
    "processors": {"no_repeat_ngram_size": 2, "min_new_tokens": 5},
    "greedy": {"num_beams": 1},
    "prefix": {"decoder_input_ids": torch.tensor([[START, 9, 4]]).expand(5, -1)},
}


@pytest.fixture
def made(monkeypatch) -> list[type]:
    """What has been made of a model's weights, in order."""
    kinds: list[type] = []
    for kind in (PackedDecoder, PackedEncoder, SessionDecoder, SessionEncoder):
        make = kind.__init__

        def making(self, *args, make=make, **kwargs):
            kinds.append(type(self))
            make(self, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", making)
    return kinds


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_sessions_find_what_torch_finds(made, architecture: dict, call: dict, side: str):
    model = sharp(3, **architecture)
    asked = {**sentences(3, [4, 9, 2, 6, 3], side), **call, "return_dict_in_generate": True}
    ours = model.generate(**asked)
    again = model.generate(**asked)
    assert {*made} == {SessionDecoder, SessionEncoder}
    with computed_by("torch"):
        theirs = model.generate(**asked)
    assert {*made} > {PackedDecoder, PackedEncoder}
    assert torch.equal(ours.sequences, again.sequences)
    if asked.get("num_beams") != 1:
        assert torch.equal(ours.sequences_scores, again.sequences_scores)
        assert_same(ours, theirs)
        return
    assert torch.equal(ours.sequences, theirs.sequences)
    for kept, expected in zip(ours.past_key_values, theirs.past_key_values, strict=True):
        for tensor, other in zip(kept, expected, strict=True):
            if isinstance(tensor, torch.Tensor):
                torch.testing.assert_close(tensor, other, atol=1e-5, rtol=1e-5)


def test_embeddings_are_encoded_as_torch_does():
    model, mask = sharp(3), INPUTS["attention_mask"]
    embeddings = torch.randn(*mask.shape, 16, generator=torch.Generator().manual_seed(0))
    for given in ({"inputs_embeds": embeddings}, {"inputs_embeds": embeddings, "attention_mask": mask}):
        ours, theirs = (
            part(model, torch.float32)(**given)[mask.bool()].detach() for part in (SessionEncoder, PackedEncoder)
        )
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_sampling_draws_what_torch_draws():
    model, found = sharp(4), []
    for engine in ("sessions", "torch"):
        with computed_by(engine):
            torch.manual_seed(0)
            found.append(model.generate(**INPUTS, do_sample=True, num_return_sequences=3, top_k=20))
    assert torch.equal(*found)


def test_a_cache_of_a_greedy_search_can_be_gone_on_from():
    model = sharp(5)
    start = model.generate(**INPUTS, num_beams=1, max_new_tokens=3, return_dict_in_generate=True)
    outputs = model(
        attention_mask=INPUTS["attention_mask"],
        encoder_outputs=model.get_encoder()(**INPUTS),
        decoder_input_ids=start.sequences[:, -1:],
        past_key_values=start.past_key_values,
    )
    whole = model(**INPUTS, decoder_input_ids=start.sequences)
    torch.testing.assert_close(outputs.logits[:, -1], whole.logits[:, -1], atol=1e-4, rtol=1e-4)


def with_gelu(model) -> None:
    model.model.decoder.layers[1].feed_forward.activation = nn.GELU()
    model.model.encoder.layers[0].feed_forward.activation = nn.GELU()


NOT_IN_SESSIONS = {
    "another activation": with_gelu,
    "another type": lambda model: model.to(torch.float64),
    "a large stack": lambda model: setattr(onnx_sessions, "LARGEST_STACK", 100),
    "many rows": lambda model: setattr(onnx_sessions, "MULTIPLICATIONS", 3000),
    "no engine": lambda model: setattr(onnx_sessions, "engine", lambda: None),
}


@pytest.mark.parametrize("change", NOT_IN_SESSIONS.values(), ids=NOT_IN_SESSIONS)
def test_torch_computes(monkeypatch, made, change):
    for name in ("LARGEST_STACK", "MULTIPLICATIONS", "engine"):
        monkeypatch.setattr(onnx_sessions, name, getattr(onnx_sessions, name))
    model = sharp(6)
    change(model)
    for beams in (1, 4):
        model.generate(**INPUTS, num_beams=beams)
    assert {*made} == {PackedDecoder, PackedEncoder}


@pytest.mark.parametrize("call", [{"quantization": "int8"}, {"num_beams": 1, "quantization": "int8"}])
def test_torch_computes_8_bits(made, call: dict):
    sharp(6).generate(**INPUTS, **call)
    assert {*made} == {PackedDecoder, PackedEncoder}


@pytest.mark.parametrize(("d_k", "d_v"), [(5, 11), (8, 4)])
def test_torch_computes_keys_and_values_of_different_widths(made, d_k: int, d_v: int):
    sharp(6, d_k=d_k, d_v=d_v).generate(**INPUTS)
    assert {*made} == {PackedDecoder, PackedEncoder}


def test_a_version_that_was_not_tried_is_not_used(monkeypatch):
    monkeypatch.setattr(
        onnx_graphs, "import_module", lambda name: SimpleNamespace(__version__="1.30.2", __name__=name)
    )
    assert onnx_graphs.engine.__wrapped__() is None


def test_an_activation_that_is_replaced_is_seen(made):
    model = sharp(7)
    for _ in range(2):
        model.generate(**INPUTS)
    with_gelu(model)
    found = model.generate(**INPUTS, return_dict_in_generate=True)
    assert {*made[2:]} == {PackedDecoder, PackedEncoder}
    other = sharp(7)
    with_gelu(other)
    assert torch.equal(found.sequences_scores, other.generate(**INPUTS, return_dict_in_generate=True).sequences_scores)


def test_a_larger_embedding_is_seen():
    model = sharp(8)
    before = model.generate(**INPUTS)
    model.resize_token_embeddings(170, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[150:] = -model.get_input_embeddings().weight[:20]
    with computed_by("torch"):
        expected = model.generate(**INPUTS, return_dict_in_generate=True)
    assert_same(model.generate(**INPUTS, return_dict_in_generate=True), expected)
    assert not torch.equal(before, expected.sequences)


def test_a_token_that_is_not_in_the_vocabulary_is_refused():
    model = sharp(9)
    for wrong in (-1, 150):
        with pytest.raises(IndexError, match="out of range"):
            model.generate(input_ids=torch.tensor([[wrong, END]]), attention_mask=torch.ones(1, 2, dtype=torch.long))


def test_threads_share_the_sessions_of_a_model(made):
    model, results = sharp(10), {}
    sources = [sentences(seed, [3 + seed % 4, 2], "right") for seed in range(8)]
    with computed_by("torch"):
        expected = [sharp(10).generate(**source, return_dict_in_generate=True) for source in sources]
    made.clear()

    def call(first: int) -> None:
        for number in [*range(first, 8), *range(first)]:
            found = model.generate(**sources[number], return_dict_in_generate=True)
            results.setdefault(number, []).append(found)

    threads = [threading.Thread(target=call, args=(2 * first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kind.__name__ for kind in made) == ["SessionDecoder", "SessionEncoder"]
    for number, wanted in enumerate(expected):
        assert len(results[number]) == 4
        for found in results[number]:
            assert_same(found, wanted)


def test_rows_descend_from_their_parents_and_sentences_leave():
    model = sharp(11)
    encoded = model.get_encoder()(**INPUTS).last_hidden_state.detach()
    caches = [
        part(model, torch.float32).start(encoded, INPUTS["attention_mask"]) for part in (SessionDecoder, PackedDecoder)
    ]
    assert isinstance(caches[0], SessionCache)
    steps = [
        (torch.tensor([[1], [1], [1]]), None),
        (torch.tensor([[4, 5], [6, 7], [8, 9]]), torch.tensor([[1, 0], [1, 1], [0, 1]])),
        (torch.tensor([[9, 8], [7, 6], [5, 4]]), torch.tensor([[0, 0], [1, 0], [0, 1]])),
        (torch.tensor([[3, 4], [8, 8]]), torch.tensor([[1, 0], [1, 1]])),
        (torch.tensor([[30, 41], [81, 82]]), None),
    ]
    with torch.inference_mode():
        for number, (tokens, parents) in enumerate(steps):
            ours, theirs = (cache.step(tokens) for cache in caches)
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
            for cache in caches:
                if parents is not None:
                    cache.reorder(parents)
                if number == 2:
                    cache.select(torch.tensor([0, 2]))
