"""Attention implementations, compiled graphs and exported programs give what the model gives."""

import pytest
import torch
from small_models import HEADS, IDS, MASK, inputs_of, random_model
from torch._dynamo.testing import CompileCounter
from torch.export import Dim
from transformers.generation import CompileConfig

TARGET = torch.tensor([[1, 6, 3, 12, 30], [1, 9, 7, 7, 40]])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


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
            model.set_attn_implementation(implementation)
            torch.testing.assert_close(model(**inputs).logits[there], expected[there], atol=1e-5, rtol=0)


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
