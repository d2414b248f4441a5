"""Sizes and costs beside the paper's tables, and the command `vanilla-transformer info` that shows them."""

import contextlib
import functools
import io
import json

import numpy as np
import pytest
from small_models import CONFIGS, ENCODERS, on_meta, random_model, save_translator

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import main
from vanilla_transformer.cost import training_flops
from vanilla_transformer.inspection.sizes import MILLIONS_OF_PARAMETERS, VOCABULARY_SIZES, count_parameters

LOW, HIGH = VOCABULARY_SIZES


@functools.cache
def page(*words):
    """Returns the command's output, kept for the same words."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["info", *map(str, words)]) == 0
    return out.getvalue()


def report(*words):
    """Returns the command's JSON."""
    return json.loads(page(*words, "--json"))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parameters_of_the_parts_are_those_of_the_model(config):
    counts = count_parameters(config)
    assert counts.pop("total") == sum(counts.values()) == on_meta(config).num_parameters()


def test_parts_of_base_are_those_of_the_papers_shapes():
    d, ff, vocabulary, layers = 512, 2048, 37000, 6
    attention, feed_forward, norm = 4 * d * d, 2 * d * ff + ff + d, 2 * d
    assert count_parameters(CONFIGS["base"]) == {
        "embedding": vocabulary * d,
        "encoder_self_attention": layers * attention,
        "encoder_feed_forward": layers * feed_forward,
        "encoder_norms": layers * 2 * norm,
        "decoder_self_attention": layers * attention,
        "decoder_cross_attention": layers * attention,
        "decoder_feed_forward": layers * feed_forward,
        "decoder_norms": layers * 3 * norm,
        "total": 63_045_632,
    }


@pytest.mark.parametrize(
    ("vocab_size", "others"), [(LOW - 1, 2), (LOW, 1), (HIGH, 1), (HIGH + 1, 2), (37_000, len(MILLIONS_OF_PARAMETERS))]
)
def test_one_vocabulary_gives_all_numbers_of_table_3_but_that_of_big(vocab_size, others):
    differing = {
        preset
        for preset, millions in MILLIONS_OF_PARAMETERS.items()
        for config in [VanillaTransformerConfig.from_preset(preset, vocab_size=vocab_size)]
        if round(count_parameters(config)["total"] / 1e6) != millions
    }
    assert len(differing) == others and "big" in differing


@pytest.mark.parametrize(("preset", "share"), [("base", 0.29), ("big", 0.42)])
def test_flops_stand_beside_those_of_table_2_which_are_time_times_devices(preset, share):
    assert report(preset)["table_3_millions"] == MILLIONS_OF_PARAMETERS[preset]
    training = report(preset)["training"]
    table_2 = training["table_2"]
    assert training["flops"] == pytest.approx(training["flops_per_target_token"] * 25_000 * training["steps"])
    assert f"{table_2['device_flops']:.1e}" == f"{table_2['table_2_flops']:.1e}"
    assert table_2["share"] == pytest.approx(share, abs=0.005)


def test_a_model_is_counted_from_its_configuration_alone(tmp_path):
    model = save_translator(tmp_path / "model")
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(model)
    described = report(tmp_path)
    assert described["parameters"]["total"] == loaded.num_parameters()
    assert described["sizes"]["vocab_size"] == 260
    assert described["table_3_millions"] is None and "PARAMETERS" in page(tmp_path)
    wider = report(tmp_path, "--vocab-size", 1260)["parameters"]
    assert wider["total"] == loaded.num_parameters() + 1000 * loaded.config.d_model


@pytest.mark.parametrize("kind", ["language-model", *ENCODERS])
def test_models_of_one_stack_are_counted_as_they_are(kind, tmp_path):
    model = random_model(kind, num_labels=5)
    model.save_pretrained(tmp_path)
    found = report(tmp_path)
    parts = found["parameters"]
    assert parts["total"] == model.num_parameters() and parts["embedding"] == 48 * 32
    assert parts.get("classifier", 0) == (0 if hasattr(model, "lm_head") else 32 * 5 + 5)
    assert found["training"]["flops_per_token"] == training_flops(model.config, np.array([25])) / 25
