import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.cost import peak_memory, training_flops


def test_flops_are_those_that_torch_counts():
    config = VanillaTransformerConfig(
        vocab_size=50, d_model=32, d_ff=48, num_heads=2, d_k=8, d_v=24, encoder_layers=2, decoder_layers=3
    )
    config._attn_implementation = "eager"
    model = VanillaTransformerForConditionalGeneration(config)
    source, target = torch.randint(4, 50, (5, 9)), torch.randint(4, 50, (5, 7))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=source, labels=target)
    ours = training_flops(config, np.full(5, 9, dtype=np.int32), np.full(5, 7, dtype=np.int32))
    assert ours == 3 * counter.get_total_flops()


def test_peak_memory_grows_with_what_is_held():
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(200_000_000 // 4)
    assert peak_memory(torch.device("cpu")) >= max(before, held.nbytes)
