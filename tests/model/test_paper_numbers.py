"""The paper's sizes and formulas: every row of Table 3; the cells of docs/paper work the equations out by hand."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from refusals import refused

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

# What Table 3 says of base, and of each row where it differs; d_k and d_v are d_model / h where it gives neither.
BASE = {"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64}
BASE |= {"dropout": 0.1, "label_smoothing": 0.1, "positional_encoding": "sinusoidal"}
TABLE_3 = {
    "base": {},
    **{
        f"table3-A-h{heads}": {"num_heads": heads, "d_k": 512 // heads, "d_v": 512 // heads}
        for heads in (1, 4, 16, 32)
    },
    **{f"table3-B-dk{d_k}": {"d_k": d_k} for d_k in (16, 32)},
    **{f"table3-C-n{layers}": {"encoder_layers": layers, "decoder_layers": layers} for layers in (2, 4, 8)},
    "table3-C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "table3-C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    **{f"table3-C-dff{d_ff}": {"d_ff": d_ff} for d_ff in (1024, 4096)},
    **{f"table3-D-dropout{dropout}": {"dropout": dropout} for dropout in (0.0, 0.2)},
    **{f"table3-D-smoothing{smoothing}": {"label_smoothing": smoothing} for smoothing in (0.0, 0.2)},
    "table3-E": {"positional_encoding": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
}


def test_glorot_and_embedding_initialisation():
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=4000, d_model=64, d_ff=128))
    embedding = model.get_input_embeddings().weight
    assert embedding.std().item() == pytest.approx(64**-0.5, rel=0.02)
    w_1 = model.model.encoder.layers[0].feed_forward.w_1
    bound = math.sqrt(6 / (64 + 128))
    assert bound * 0.98 < w_1.weight.abs().max().item() <= bound
    assert not w_1.bias.any()


def test_presets_are_the_rows_of_table_3_and_two_smaller_sizes():
    assert set(VanillaTransformerConfig.presets()) == {"tiny", "small", *TABLE_3}
    for name, row in TABLE_3.items():
        config = VanillaTransformerConfig.from_preset(name, vocab_size=321)
        assert {field: getattr(config, field) for field in BASE} == {**BASE, **row}, name
        assert config.vocab_size == 321
    with refused(ValueError, "bas", "base"):
        VanillaTransformerConfig.from_preset("bas")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("d_model", 100), ("d_model", 9), ("num_heads", 0), ("d_model", 4.0), ("vocab_size", "4")],
        *[(name, 10**9) for name in ("d_model", "d_ff", "d_k", "d_v", "num_heads", "encoder_layers")],
        *[("dropout", float("nan")), ("layer_norm_eps", -1e-6), ("positional_encoding", "rotary")],
    ],
)
def test_senseless_settings_are_refused_before_memory_is_taken(name, value):
    with pytest.raises((ValueError, StrictDataclassError), match=name):
        VanillaTransformerConfig(**{name: value})
