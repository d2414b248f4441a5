"""One model on two processes, each with half of the heads and of the inner units."""

import os
import socket

import pytest
import torch
from launching import PROCESSES
from transformers.distributed import DistributedConfig

from vanilla_transformer import (
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
)

SOURCE = torch.tensor([[5, 9, 7, 8, 2], [11, 4, 2, 0, 0]])
INPUTS = {
    "input_ids": SOURCE,
    "attention_mask": (SOURCE != 0).long(),
    "labels": torch.tensor([[6, 3, 12, 2], [9, 2, -100, -100]]),
}


def divided(directory, rank, port):
    """Writes the results of one of the two processes for the test."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(
        directory, distributed_config=DistributedConfig(tp_plan="auto")
    ).eval()
    outputs = model(**INPUTS)
    outputs.loss.backward()
    gradient = model.model.encoder.layers[0].feed_forward.w_1.weight.grad
    found = {
        "logits": outputs.logits.detach(),
        "gradient": gradient.full_tensor(),
        "ids": model.generate(SOURCE, attention_mask=INPUTS["attention_mask"], max_new_tokens=6),
        "divided": [name for name, weight in model.named_parameters() if hasattr(weight, "full_tensor")],
        "here": gradient.to_local().shape,
    }
    torch.save(found, directory / f"{rank}.pt")


def in_two_processes(function, directory):
    """Calls the function in two processes, each with its rank and the port where they meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [PROCESSES.Process(target=function, args=(directory, rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]


def divided_family(directory, rank, port):
    """Writes one process's results with a decoder-only and an encoder-only model."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    found = {}
    for kind in (VanillaTransformerDecoderForCausalLM, VanillaTransformerEncoderForMaskedLM):
        plan = DistributedConfig(tp_plan="auto")
        model = kind.from_pretrained(directory / kind.__name__, distributed_config=plan).eval()
        outputs = model(SOURCE, INPUTS["attention_mask"], labels=SOURCE)
        outputs.loss.backward()
        gradient = model.model.layers[0].feed_forward.w_1.weight.grad
        logits, whole = outputs.logits.detach(), gradient.full_tensor()
        found[kind.__name__] = {"logits": logits, "gradient": whole, "here": gradient.to_local().shape}
    torch.save(found, directory / f"{rank}.pt")


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="gloo is not available.")
def test_two_processes_compute_what_one_does(tiny_model, tmp_path):
    tiny_model.save_pretrained(tmp_path)
    in_two_processes(divided, tmp_path)
    outputs = tiny_model(**INPUTS)
    outputs.loss.backward()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(found["logits"], outputs.logits.detach(), atol=1e-5, rtol=0)
        expected = tiny_model.model.encoder.layers[0].feed_forward.w_1.weight.grad
        torch.testing.assert_close(found["gradient"], expected, atol=1e-6, rtol=1e-4)
        alone = tiny_model.generate(SOURCE, attention_mask=INPUTS["attention_mask"], max_new_tokens=6)
        assert torch.equal(found["ids"], alone)
        assert found["here"] == (32, 32)
        # In each of two layers a side: four projections of each attention, and two with biases.
        assert len(found["divided"]) == 2 * (4 + 4) + 2 * (8 + 4)


def test_the_plan_names_modules_that_are_there(tiny_model):
    modules = {name.replace(".0.", ".*.") for name, _ in tiny_model.named_modules()}
    assert tiny_model.tp_plan and set(tiny_model.tp_plan) <= modules


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="gloo is not available.")
def test_the_other_families_are_divided_too(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 48, "d_model": 32, "d_ff": 64, "num_heads": 4}
    models = [
        VanillaTransformerDecoderForCausalLM(VanillaTransformerDecoderConfig(**sizes, decoder_layers=2)).eval(),
        VanillaTransformerEncoderForMaskedLM(VanillaTransformerEncoderConfig(**sizes, encoder_layers=2)).eval(),
    ]
    for model in models:
        model.save_pretrained(tmp_path / type(model).__name__)
    in_two_processes(divided_family, tmp_path)
    for model in models:
        outputs = model(SOURCE, INPUTS["attention_mask"], labels=SOURCE)
        outputs.loss.backward()
        for rank in range(2):
            found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)[type(model).__name__]
            torch.testing.assert_close(found["logits"], outputs.logits.detach(), atol=1e-5, rtol=0)
            expected = model.model.layers[0].feed_forward.w_1.weight.grad
            torch.testing.assert_close(found["gradient"], expected, atol=1e-6, rtol=1e-4)
            assert found["here"] == (32, 32)
