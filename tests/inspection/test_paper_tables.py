"""The paper's figures of size and cost, and their consequences."""

import pytest

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.inspection.paper_tables import (
    TABLE_2,
    is_in_paper,
    most_common_vocabularies,
    table_3,
)
from vanilla_transformer.inspection.parameters import count_parameters

ROWS = table_3(37_000)


def test_a_row_has_its_number_with_these_vocabularies_and_no_others():
    for row in ROWS:
        low, high = row.vocabularies
        for vocab_size, agrees in ((low - 1, False), (low, True), (high, True), (high + 1, False)):
            config = VanillaTransformerConfig.from_preset(row.preset, vocab_size=vocab_size)
            total = count_parameters(config)["total"]
            assert (row.millions - 0.5 <= total / 1e6 < row.millions + 0.5) == agrees, row.preset


def test_one_vocabulary_gives_all_numbers_of_table_3_but_that_of_big():
    (low, high), others = most_common_vocabularies(ROWS)
    assert others == ["big"]
    for row in table_3((low + high) // 2):
        assert (round(row.parameters / 1e6) == row.millions) == (row.preset != "big")


@pytest.mark.parametrize("preset", ["base", "big"])
def test_table_2_is_time_times_devices_times_what_one_sustains(preset):
    published = TABLE_2[preset]
    assert f"{published.flops:.1e}" == f"{published.table_2_flops:.1e}"


def test_our_own_sizes_are_not_the_papers():
    ours = [name for name in VanillaTransformerConfig.presets() if not is_in_paper(name)]
    assert ours == ["tiny", "small"]
