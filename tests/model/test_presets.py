"""The presets: every row of Table 3, each at its own widths."""

import pytest
import torch
from refusals import refused

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)

# What Table 3 says of each row where it differs from base; d_k and d_v are d_model / h where it gives neither.
BASE = {
    "encoder_layers": 6,
    "decoder_layers": 6,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 8,
    "d_k": 64,
    "d_v": 64,
    "dropout": 0.1,
    "label_smoothing": 0.1,
    "positional_encoding": "sinusoidal",
}
TABLE_3 = {
    "base": {},
    "table3-A-h1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "table3-A-h4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "table3-A-h16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "table3-A-h32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "table3-B-dk16": {"d_k": 16},
    "table3-B-dk32": {"d_k": 32},
    "table3-C-n2": {"encoder_layers": 2, "decoder_layers": 2},
    "table3-C-n4": {"encoder_layers": 4, "decoder_layers": 4},
    "table3-C-n8": {"encoder_layers": 8, "decoder_layers": 8},
    "table3-C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "table3-C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "table3-C-dff1024": {"d_ff": 1024},
    "table3-C-dff4096": {"d_ff": 4096},
    "table3-D-dropout0.0": {"dropout": 0.0},
    "table3-D-dropout0.2": {"dropout": 0.2},
    "table3-D-smoothing0.0": {"label_smoothing": 0.0},
    "table3-D-smoothing0.2": {"label_smoothing": 0.2},
    "table3-E": {"positional_encoding": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
}


def test_presets_are_the_rows_of_table_3_and_two_smaller_sizes():
    assert set(VanillaTransformerConfig.presets()) == {"tiny", "small", *TABLE_3}


def test_a_preset_is_its_row_of_table_3():
    for name, row in TABLE_3.items():
        config = VanillaTransformerConfig.from_preset(name, vocab_size=321)
        assert {field: getattr(config, field) for field in BASE} == {**BASE, **row}, name
        assert config.vocab_size == 321


@pytest.mark.parametrize("name", ["big", "table3-B-dk16", "table3-E"])
def test_a_preset_builds_learns_saves_and_loads(name, tmp_path):
    """At its full width and depth; a small vocabulary and bfloat16 keep `big` within a few seconds."""
    torch.manual_seed(0)
    config = VanillaTransformerConfig.from_preset(name, vocab_size=16)
    model = VanillaTransformerForConditionalGeneration(config).to(torch.bfloat16)
    batch = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "labels": torch.tensor([[8, 9, 2]])}

    with torch.no_grad():
        before = model.eval()(**batch).loss
    model.train()(**batch).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    with torch.no_grad():
        after = model.eval()(**batch)
    assert after.loss < before

    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert {field: getattr(loaded.config, field) for field in BASE} == {
        field: getattr(config, field) for field in BASE
    }
    assert loaded.dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**batch).logits, after.logits)


@pytest.mark.parametrize(("wrong", "nearest"), [("bas", "base"), ("table3-c-d256", "table3-C-d256"), ("Big", "big")])
def test_a_misspelt_preset_names_the_nearest(wrong, nearest):
    with refused(ValueError, nearest):
        VanillaTransformerConfig.from_preset(wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("d_model", 100), ("num_heads", 0), ("d_ff", -1), ("positional_encoding", "rotary")],
        *[("vocab_size", "4"), ("d_model", 4.0), ("encoder_layers", True)],
        *[
            (name, 10**9)
            for name in ("d_model", "d_ff", "d_k", "d_v", "num_heads", "encoder_layers", "decoder_layers")
        ],
        *[("vocab_size", 10**12), ("max_position_embeddings", 10**12), ("max_position_embeddings", 0), ("d_ff", None)],
        *[("dropout", "0.1"), ("dropout", float("nan")), ("label_smoothing", True), ("layer_norm_eps", -1e-6)],
        *[("layer_norm_eps", float("inf")), ("layer_norm_eps", "1e-6"), ("attention_dropout", 1.1)],
        *[("attention_bias", "no"), ("tie_word_embeddings", 1), ("pad_token_id", "0"), ("eos_token_id", [2, "3"])],
        ("activation_function", 3),
    ],
)
def test_senseless_settings_are_refused_before_memory_is_taken(name, value):
    with refused(ValueError, name):
        VanillaTransformerConfig(**{name: value})
