"""While the libraries load nothing is collected, and afterwards as usual."""

import gc
import sys

import pytest

from vanilla_transformer.cli.decoding import loading_libraries


@pytest.fixture
def unfrozen():
    yield
    gc.unfreeze()


def test_garbage_is_collected_again_after_loading_and_after_a_failure(monkeypatch, unfrozen):
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils", raising=False)
    with pytest.raises(OSError), loading_libraries():
        assert not gc.isenabled()
        raise OSError
    assert gc.isenabled() and gc.get_freeze_count() > 0


def test_only_the_first_loading_pauses_garbage_collection(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", sys)
    with loading_libraries():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
