import numpy as np
import pytest
import torch
from small_models import CONFIGS, on_meta
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer.cost import training_flops


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_flops_are_those_that_torch_counts(config):
    source, target = (torch.zeros(5, length, dtype=torch.int64, device="meta") for length in (9, 7))
    with FlopCounterMode(display=False) as counter:
        on_meta(config)(input_ids=source, decoder_input_ids=target).logits.sum().backward()
    ours = training_flops(config, np.full(5, 9, dtype=np.int32), np.full(5, 7, dtype=np.int32))
    assert ours == counter.get_total_flops()
