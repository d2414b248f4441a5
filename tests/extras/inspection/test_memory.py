"""The memory of a training step, counted before and measured after."""

import subprocess
import sys

import pytest
import torch

from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.analysis.devices import peak_memory
from vanilla_transformer.extras.inspection.memory import training_memory

CONFIG = VanillaTransformerConfig.from_preset("tiny", vocab_size=4000)
BATCH = {"sentences": 64, "source_length": 25, "target_length": 25}
# What a process takes more for a batch than it holds already, from the peak that the system has seen.
MEASURE = """
import psutil, torch
from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.analysis.devices import peak_memory
torch.set_num_threads(1)
model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig.from_preset("tiny", vocab_size=4000))
model.train().set_attn_implementation("eager")
def run(sentences, length):
    ids = torch.full((sentences, length), 5)
    model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel(), skip_logits=True).loss.backward()
run(1, 2)
before = psutil.Process().memory_info().rss
run(64, 25)
print(peak_memory(torch.device("cpu")) - before)
"""


def test_a_batch_takes_what_was_counted_and_some_for_the_gaps():
    counted = training_memory(CONFIG, **BATCH, precision="float32").activations
    measured = int(subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, check=True).stdout)
    assert 0.9 * counted < measured < 1.8 * counted


def test_weights_gradients_and_adam_are_four_numbers_a_parameter():
    memory = training_memory(CONFIG, sentences=1, source_length=2, target_length=2, precision="float32")
    parameters = 1_885_696 + (4000 - 316) * 128
    assert (memory.weights, memory.gradients, memory.adam) == (4 * parameters, 4 * parameters, 8 * parameters)
    assert memory.total == 16 * parameters + memory.activations
    assert memory.checkpoint_copy == 12 * parameters


def test_activations_grow_with_the_batch_and_shrink_with_the_precision():
    config = VanillaTransformerConfig.from_preset("tiny", vocab_size=500, encoder_layers=1, decoder_layers=1)

    def activations(sentences: int, precision: str) -> int:
        batch = {**BATCH, "sentences": sentences}
        return training_memory(config, **batch, precision=precision).activations

    assert activations(192, "float32") == pytest.approx(2 * activations(96, "float32"), rel=0.1)
    assert activations(96, "bfloat16") < 0.9 * activations(96, "float32")


def test_the_logits_of_a_whole_batch_are_never_there():
    config = VanillaTransformerConfig(
        vocab_size=2**21, d_model=2, d_ff=2, num_heads=1, encoder_layers=1, decoder_layers=1
    )
    memory = training_memory(config, sentences=4, source_length=4, target_length=16, precision="float32")
    logits = 4 * (4 * 16) * 2**21
    assert memory.activations < 0.7 * logits


def test_nothing_of_a_large_model_is_allocated():
    before = peak_memory(torch.device("cpu"))
    memory = training_memory(
        VanillaTransformerConfig.from_preset("big"),
        sentences=40,
        source_length=25,
        target_length=25,
        precision="bfloat16",
    )
    assert memory.total > 4e9
    assert peak_memory(torch.device("cpu")) - before < 0.3e9
