"""Attention implementations, compiled graphs, exported programs and halves of a model give what the model gives."""

import os
import socket
from pathlib import Path

import pytest
import torch
from launching import PROCESSES
from refusals import refused
from small_models import HEADS, IDS, MASK, inputs_of, random_model
from torch._dynamo.testing import CompileCounter
from torch.export import Dim
from transformers.distributed import DistributedConfig
from transformers.generation import CompileConfig
from transformers.utils import is_flash_attn_2_available

TARGET = torch.tensor([[1, 6, 3, 12, 30], [1, 9, 7, 7, 40]])
FAMILIES = ["translator", "masked-language-model", "language-model"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def cached_steps(model) -> torch.Tensor:
    """Logits of one step after another: two tokens first, then one at a time."""
    encoded, cache, logits = model.get_encoder()(IDS, MASK), None, []
    for tokens in TARGET.split([2, 1, 1, 1], dim=1):
        outputs = model(
            encoder_outputs=encoded,
            attention_mask=MASK,
            decoder_input_ids=tokens,
            past_key_values=cache,
            use_cache=True,
        )
        cache = outputs.past_key_values
        logits.append(outputs.logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
@pytest.mark.parametrize("kind", HEADS)
def test_attention_implementations_give_the_same_logits(kind: str, implementation: str):
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    there = slice(None) if kind == "classifier" else MASK.bool()
    if kind == "translator":
        mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
        inputs |= {"decoder_input_ids": TARGET, "decoder_attention_mask": mask}
        there = mask.bool()
    for widths in ({}, {"d_k": 5, "d_v": 11}):
        model = random_model(kind, **widths)
        model.set_attn_implementation("eager")
        # Only forward: torch has no backward pass of flex attention on CPUs. Its kernels take a minute to compile
        # there; without them it computes the same from the same masks.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            expected = model(**inputs).logits
            stepwise = cached_steps(model) if kind == "translator" else None
            model.set_attn_implementation(implementation)
            torch.testing.assert_close(model(**inputs).logits[there], expected[there], atol=1e-5, rtol=0)
            if stepwise is not None:
                torch.testing.assert_close(cached_steps(model), stepwise, atol=1e-5, rtol=0)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_flash_attn_2_available()),
    reason="Flash attention needs a GPU and flash-attn.",
)
def test_flash_attention_gives_the_same_logits_in_bfloat16():
    model = random_model("translator").to("cuda", torch.bfloat16)
    inputs = {name: value.cuda() for name, value in inputs_of("translator").items()}
    with torch.no_grad():
        expected = model(**inputs).logits
        model.set_attn_implementation("flash_attention_2")
        torch.testing.assert_close(model(**inputs).logits, expected, atol=3e-2, rtol=0)


def test_flash_attention_refuses_keys_and_values_of_different_width():
    attention = random_model("translator", d_k=5, d_v=11).model.encoder.layers[0].self_attention
    attention.config._attn_implementation = "flash_attention_2"
    with refused(ValueError, "d_k", "5", "d_v", "11"):
        attention(torch.zeros(1, 2, 32))


@pytest.mark.parametrize("kind", HEADS)
def test_a_training_step_is_one_graph(kind: str):
    model, counter = random_model(kind, dropout=0.1).train(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    compiled(**inputs_of(kind)).loss.backward()
    assert counter.frame_count == 1
    assert all(parameter.grad is not None for parameter in model.parameters())


def batch(kind: str, rows: int, source: int, target: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(rows)
    mask = torch.ones(rows, source, dtype=torch.long)
    mask[0, -2:] = 0
    inputs = {"input_ids": torch.randint(3, 48, (rows, source)), "attention_mask": mask}
    decoder = {"decoder_input_ids": torch.randint(3, 48, (rows, target))} if kind == "translator" else {}
    return inputs | decoder


@pytest.mark.parametrize("kind", ["translator", "classifier", "language-model"])
def test_one_compiled_graph_and_one_exported_program_serve_every_shape(kind: str):
    model, counter = random_model(kind), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    axes, long, short = Dim("batch", min=2), Dim("source", min=2), Dim("target", min=2)
    cached = {} if kind == "classifier" else {"use_cache": False}
    inputs = {**batch(kind, 3, 7, 5), **cached}
    shapes = {name: {0: axes, 1: short if "decoder" in name else long} for name in inputs if name not in cached}
    exported = torch.export.export(model, (), inputs, dynamic_shapes={**shapes, **dict.fromkeys(cached)}).module()
    for shape in ((3, 7, 5), (4, 9, 6), (5, 11, 13)):
        inputs = {**batch(kind, *shape), **cached}
        with torch.no_grad():
            expected = model(**inputs).logits
            for other in (compiled, exported):
                torch.testing.assert_close(other(**inputs).logits, expected, atol=1e-5, rtol=0)
    assert counter.frame_count == 1


def test_decoding_with_a_static_cache_is_compiled_once():
    model, graphs = random_model("translator"), []

    def keep(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    settings = CompileConfig(backend=keep, mode=None, fullgraph=True, dynamic=False)
    settings._compile_all_devices = True  # Else only on accelerators.
    asked = {"input_ids": IDS, "attention_mask": MASK, "num_beams": 1, "max_new_tokens": 12}
    expected = model.generate(**asked)
    for _ in range(2):
        found = model.generate(**asked, cache_implementation="static", compile_config=settings)
        assert torch.equal(found, expected)
    assert len(graphs) == 1


def first_layer(model):
    return (model.model.encoder if hasattr(model.model, "encoder") else model.model).layers[0]


def results(model, kind: str) -> dict[str, torch.Tensor]:
    outputs = model(**inputs_of(kind))
    outputs.loss.backward()
    found = {"logits": outputs.logits.detach(), "gradient": first_layer(model).feed_forward.w_1.weight.grad}
    if kind == "translator":
        found["ids"] = model.generate(IDS, attention_mask=MASK, max_new_tokens=6)
    return found


def half(directory: Path, rank: int, port: int) -> None:
    """Writes what one of two processes finds with each family."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    found = {}
    for kind in FAMILIES:
        plan = DistributedConfig(tp_plan="auto")
        found[kind] = results(HEADS[kind].from_pretrained(directory / kind, distributed_config=plan).eval(), kind)
        gradient = found[kind]["gradient"]
        found[kind] |= {"gradient": gradient.full_tensor(), "here": torch.tensor(gradient.to_local().shape)}
    torch.save(found, directory / f"{rank}.pt")


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="gloo is not available.")
def test_a_model_divided_over_two_processes_computes_what_one_does(tmp_path: Path):
    models = {kind: random_model(kind) for kind in FAMILIES}
    for kind, model in models.items():
        model.save_pretrained(tmp_path / kind)
        assert model.tp_plan and set(model.tp_plan) <= {
            name.replace(".0.", ".*.") for name, _ in model.named_modules()
        }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [PROCESSES.Process(target=half, args=(tmp_path, rank, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    for kind, model in models.items():
        expected = results(model, kind)
        for rank in range(2):
            found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)[kind]
            # Each has half of the 64 inner units.
            assert found.pop("here").tolist() == [32, 32]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
