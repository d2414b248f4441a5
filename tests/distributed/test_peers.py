"""What processes tell each other, without starting them."""

import pytest
import torch
from refusals import refused

from vanilla_transformer.distributed.peers import LaunchError, Peers


@pytest.mark.parametrize(("ours", "theirs"), [({"size": 1}, {"size": 2}), ({"size": 1}, {}), ({}, {"size": 2})])
def test_a_fact_of_one_process_alone_is_a_difference(ours, theirs):
    store = torch.distributed.HashStore()
    assert Peers(store, 1, 2).gather(("elsewhere", theirs)) == []
    with refused(LaunchError, "Process 1 on elsewhere", "size"):
        Peers(store, 0, 2).check_same(ours, "{process}: {name} {theirs}, not {ours}")
