"""Parameters of a model by part."""

import pytest
from small_models import CONFIGS, on_meta

from vanilla_transformer.inspection.parameters import count_parameters


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parameters_of_the_parts_are_those_of_the_model(config):
    counts = count_parameters(config)
    assert counts.pop("total") == sum(counts.values()) == on_meta(config).num_parameters()


def test_parts_of_base_are_those_of_the_papers_shapes():
    d, ff, vocabulary, layers = 512, 2048, 37000, 6
    attention, feed_forward, norm = 4 * d * d, 2 * d * ff + ff + d, 2 * d
    assert count_parameters(CONFIGS["base"]) == {
        "embedding": vocabulary * d,
        "positions": 0,
        "encoder_self_attention": layers * attention,
        "encoder_feed_forward": layers * feed_forward,
        "encoder_norms": layers * 2 * norm,
        "decoder_self_attention": layers * attention,
        "decoder_cross_attention": layers * attention,
        "decoder_feed_forward": layers * feed_forward,
        "decoder_norms": layers * 3 * norm,
        "total": 63_045_632,
    }
