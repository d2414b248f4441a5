"""The versions of transformers that are tested are the oldest and the newest allowed."""

import transformers
from packaging.specifiers import SpecifierSet
from refusals import refused

from scripts.stress.transformers_versions import allowed, oldest_and_newest

PUBLISHED = ["4.57.1", "5.22.2", "5.23.0", "5.23.1", "5.100.0", "6.0.0", "6.1.0"]


def test_the_oldest_and_the_newest_that_are_allowed_are_tested():
    assert oldest_and_newest(PUBLISHED, SpecifierSet(">=5.23,<6")) == ["5.23.0", "5.100.0"]
    assert oldest_and_newest(PUBLISHED, SpecifierSet(">=6,<6.1")) == ["6.0.0"]
    with refused(ValueError, ">=7", "6.1.0"):
        oldest_and_newest(PUBLISHED, SpecifierSet(">=7"))


def test_installed_transformers_is_within_an_upper_bound():
    assert {clause.operator for clause in allowed()} >= {">=", "<"}
    assert transformers.__version__ in allowed()
