"""The presets: every row of Table 3, each at its own widths."""

import pytest
from huggingface_hub.errors import StrictDataclassError
from refusals import refused

from vanilla_transformer import VanillaTransformerConfig

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
        *[("d_model", 100), ("d_model", 9), ("num_heads", 0), ("d_ff", -1), ("d_ff", None), ("d_model", 4.0)],
        *[(name, 10**9) for name in ("d_model", "d_ff", "d_k", "d_v", "num_heads", "encoder_layers")],
        *[("vocab_size", 10**12), ("vocab_size", "4"), ("max_position_embeddings", 0), ("encoder_layers", True)],
        *[("dropout", "0.1"), ("dropout", float("nan")), ("attention_dropout", 1.1), ("label_smoothing", True)],
        *[("layer_norm_eps", -1e-6), ("tie_word_embeddings", 1), ("pad_token_id", "0"), ("eos_token_id", [2, "3"])],
        *[("positional_encoding", "rotary"), ("activation_function", 3)],
    ],
)
def test_senseless_settings_are_refused_before_memory_is_taken(name, value):
    with pytest.raises((ValueError, StrictDataclassError), match=name):
        VanillaTransformerConfig(**{name: value})
