import numpy as np
import pytest
import torch
from small_models import CONFIGS, on_meta
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cost import training_flops


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_flops_are_those_that_torch_counts(config):
    source, target = (torch.zeros(5, length, dtype=torch.int64, device="meta") for length in (9, 7))
    with FlopCounterMode(display=False) as counter:
        on_meta(config)(input_ids=source, decoder_input_ids=target)
    ours = training_flops(config, np.full(5, 9, dtype=np.int32), np.full(5, 7, dtype=np.int32))
    assert ours == 3 * counter.get_total_flops()


def test_backward_takes_twice_the_products_of_forward():
    config = CONFIGS["own d_k and d_v"]
    config._attn_implementation = "eager"
    model = VanillaTransformerForConditionalGeneration(config)
    source, target = torch.randint(4, 50, (5, 9)), torch.randint(4, 50, (5, 7))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=source, labels=target).loss.backward()
    ours = training_flops(config, np.full(5, 9, dtype=np.int32), np.full(5, 7, dtype=np.int32))
    assert counter.get_total_flops() == ours
