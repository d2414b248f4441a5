"""The paper's figures of size and cost, and their consequences."""

import pytest

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.inspection.paper_tables import MILLIONS_OF_PARAMETERS, TABLE_2, VOCABULARIES
from vanilla_transformer.inspection.parameters import count_parameters

LOW, HIGH = VOCABULARIES


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


@pytest.mark.parametrize("preset", ["base", "big"])
def test_table_2_is_time_times_devices_times_what_one_sustains(preset):
    published = TABLE_2[preset]
    assert f"{published.flops:.1e}" == f"{published.table_2_flops:.1e}"
