"""The copies of weights that `generate` keeps: every change of a weight is seen, and the copies can be freed."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from engines import engine  # noqa: F401

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model import packed_copies
from vanilla_transformer.model.onnx_sessions import SessionDecoder, SessionEncoder
from vanilla_transformer.model.packed_decoder import PackedDecoder
from vanilla_transformer.model.packed_encoder import PackedEncoder

pytestmark = pytest.mark.usefixtures("engine")
SOURCE = torch.tensor([[5, 9, 30, 31, 2], [7, 7, 12, 2, 0]])


def model_of(vocabulary: int = 150, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    sizes = {"d_model": 48, "d_ff": 96, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    config = VanillaTransformerConfig(vocab_size=vocabulary, attention_bias=True, **sizes)
    return VanillaTransformerForConditionalGeneration(config).to(dtype).eval()


def scores(model, **settings) -> torch.Tensor:
    asked = {"num_beams": 2, "max_new_tokens": 4, "return_dict_in_generate": True, **settings}
    return model.generate(SOURCE, **asked).sequences_scores


def one_row(weight):
    weight.data[len(weight) // 2 + 1] *= 1.5


def swapped_rows(weight):
    weight.data[[4, 9]] = weight.data[[9, 4]]


def swapped_neighbours(weight):
    weight.data[7, [4, 5]] = weight.data[7, [5, 4]] * 1.0


def reversed_row(weight):
    weight.data[3] = weight.data[3].flip(0)


def permuted_columns(weight):
    weight.data[:, [0, 1, 2, 3]] = weight.data[:, [2, 3, 1, 0]]


def one_number(weight):
    weight.data[11, 13] += 0.5


def through_numpy(weight):
    weight.detach().view(torch.uint8 if weight.dtype == torch.bfloat16 else weight.dtype).numpy()[5, ::2] = 1


def negated(weight):
    weight.data.neg_()


def another_tensor(weight):
    weight.data = weight.data.flip(0).clone()


EDITS = [
    one_row,
    swapped_rows,
    swapped_neighbours,
    reversed_row,
    permuted_columns,
    one_number,
    through_numpy,
    negated,
    another_tensor,
]
WEIGHTS = [
    "lm_head.weight",
    "model.decoder.layers.1.feed_forward.w_1.weight",
    "model.decoder.layers.0.self_attention.q_proj.weight",
    "model.encoder.layers.0.self_attention.v_proj.weight",
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(("dtype", "quantization"), [("float32", None), ("bfloat16", None), ("float32", "int8")])
def test_every_change_of_a_weight_is_seen(edit, dtype, quantization):
    model = model_of(dtype=getattr(torch, dtype))
    scores(model, quantization=quantization)
    for name in WEIGHTS:
        edit(model.get_parameter(name))
        expected = scores(copy.deepcopy(model), quantization=quantization)
        assert torch.equal(scores(model, quantization=quantization), expected), name


@pytest.mark.parametrize("edit", [one_number, through_numpy, negated])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_change_is_seen_where_memory_is_compared_by_numpy(monkeypatch, edit, in_order: bool):
    if in_order:
        monkeypatch.setattr(packed_copies, "_memcmp", None)
    model = model_of()
    if not in_order:
        weight = model.get_parameter(WEIGHTS[1])
        weight.data = weight.data.mT.contiguous().mT
    scores(model)
    for name in WEIGHTS:
        edit(model.get_parameter(name))
        assert torch.equal(scores(model), scores(copy.deepcopy(model))), name


@pytest.mark.parametrize("edit", [one_number, through_numpy, swapped_rows, another_tensor])
def test_a_change_of_large_weights_is_seen_by_checksums(monkeypatch, edit):
    monkeypatch.setattr(packed_copies, "SNAPSHOT_BYTES", 0)
    model = model_of()
    scores(model)
    for name in WEIGHTS:
        edit(model.get_parameter(name))
        assert torch.equal(scores(model), scores(copy.deepcopy(model))), name


def test_each_row_of_the_embedding_is_seen():
    model = model_of(vocabulary=34)
    for row in range(34):
        scores(model, max_new_tokens=1)
        model.get_input_embeddings().weight.data[row] += 0.3
        expected = scores(copy.deepcopy(model), max_new_tokens=1)
        assert torch.equal(scores(model, max_new_tokens=1), expected), row


def test_a_bias_and_a_norm_are_seen():
    model = model_of()
    for name in ("self_attention.out_proj.bias", "feed_forward_norm.weight"):
        scores(model)
        model.get_parameter(f"model.decoder.layers.1.{name}").data[7] += 0.5
        assert torch.equal(scores(model), scores(copy.deepcopy(model))), name


def test_memory_that_others_write_is_seen():
    model = model_of()
    memory = np.random.default_rng(0).normal(size=(96, 48)).astype(np.float32)
    model.model.decoder.layers[0].feed_forward.w_1.weight.data = torch.from_numpy(memory)
    scores(model)
    memory[41] += 1
    assert torch.equal(scores(model), scores(copy.deepcopy(model)))


@pytest.fixture
def packed(monkeypatch) -> Counter:
    """How often encoder and decoder were packed."""
    made: Counter = Counter()

    def counted(part):
        pack = part.__init__

        def counting(self, *args, **kwargs):
            made[part] += 1
            pack(self, *args, **kwargs)

        monkeypatch.setattr(part, "__init__", counting)

    for part in (PackedDecoder, PackedEncoder, SessionDecoder, SessionEncoder):
        counted(part)
    return made


def test_two_types_in_turn_are_packed_once_each(packed, engine):  # noqa: F811
    model = model_of()
    for _ in range(3):
        scores(model)
        scores(model, quantization="int8")
    decoder, encoder = (SessionDecoder, SessionEncoder) if engine == "sessions" else (PackedDecoder, PackedEncoder)
    expected = Counter([decoder, encoder]) + Counter([PackedDecoder, PackedEncoder])
    assert packed == expected
    one_number(model.lm_head.weight)
    scores(model)
    assert packed == expected + Counter([decoder])


def test_packed_weights_can_be_freed(packed):
    model = model_of()
    expected = scores(model)
    model.free_packed_weights()
    assert torch.equal(scores(model), expected)
    assert set(packed.values()) == {2}
