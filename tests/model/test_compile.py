"""Attention implementations, compiled graphs and exported programs give what the plain model gives."""

import pytest
import torch
from refusals import refused
from torch._dynamo.testing import CompileCounter
from torch.export import Dim
from transformers.generation import CompileConfig
from transformers.utils import is_flash_attn_2_available

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

SOURCE = torch.tensor([[5, 9, 7, 8, 11, 6, 2], [11, 4, 2, 0, 0, 0, 0], [6, 7, 8, 2, 0, 0, 0]])
TARGET = torch.tensor([[1, 6, 3, 12, 30], [1, 9, 7, 7, 40], [1, 5, 5, 5, 5]])
INPUTS = {"input_ids": SOURCE, "attention_mask": (SOURCE != 0).long(), "decoder_input_ids": TARGET}
LABELS = torch.tensor([[6, 3, 12, 30, 2], [9, 7, 2, -100, -100], [5, 5, 5, 5, 2]])
IMPLEMENTATIONS = ["sdpa", "flex_attention"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build(**fields) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    config = VanillaTransformerConfig(**{"vocab_size": 48, **sizes, "dropout": 0.0, **fields})
    return VanillaTransformerForConditionalGeneration(config).eval()


def batch(rows: int, source: int, target: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(rows)
    mask = torch.ones(rows, source, dtype=torch.long)
    mask[0, -2:] = 0
    return {
        "input_ids": torch.randint(3, 48, (rows, source)),
        "attention_mask": mask,
        "decoder_input_ids": torch.randint(3, 48, (rows, target)),
    }


def cached_steps(model) -> torch.Tensor:
    """Logits of one step after another: two tokens first, then one at a time."""
    encoded, cache, logits = model.get_encoder()(SOURCE, INPUTS["attention_mask"]), None, []
    for tokens in TARGET.split([2, 1, 1, 1], dim=1):
        outputs = model(
            encoder_outputs=encoded,
            attention_mask=INPUTS["attention_mask"],
            decoder_input_ids=tokens,
            past_key_values=cache,
            use_cache=True,
        )
        cache = outputs.past_key_values
        logits.append(outputs.logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("widths", [{}, {"d_k": 5, "d_v": 11}, {"d_k": 16, "d_v": 3}])
def test_attention_implementations_give_the_same_logits(implementation: str, widths: dict[str, int]):
    model = build(**widths)
    model.set_attn_implementation("eager")
    target_mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    # Only forward: torch has no backward pass of flex attention on CPUs. Its kernels take a minute to compile there;
    # without them it computes the same from the same masks.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = model(**INPUTS).logits
        padded = model(**INPUTS, decoder_attention_mask=target_mask).logits
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(model(**INPUTS).logits, expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(cached_steps(model), expected, atol=1e-5, rtol=0)
        found = model(**INPUTS, decoder_attention_mask=target_mask).logits
        there = target_mask.bool()  # What stands at a padded position is nobody's business.
        torch.testing.assert_close(found[there], padded[there], atol=1e-5, rtol=0)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and is_flash_attn_2_available()),
    reason="Flash attention needs a GPU and flash-attn.",
)
def test_flash_attention_gives_the_same_logits_in_bfloat16():
    model = build().to("cuda", torch.bfloat16)
    inputs = {name: value.cuda() for name, value in INPUTS.items()}
    with torch.no_grad():
        expected = model(**inputs).logits
        model.set_attn_implementation("flash_attention_2")
        torch.testing.assert_close(model(**inputs).logits, expected, atol=3e-2, rtol=0)


def test_flash_attention_refuses_keys_and_values_of_different_width():
    attention = build(d_k=5, d_v=11).model.encoder.layers[0].self_attention
    attention.config._attn_implementation = "flash_attention_2"
    with refused(ValueError, "d_k", "5", "d_v", "11"):
        attention(torch.zeros(1, 2, 32))


def test_one_graph_serves_every_shape():
    model, counter = build(), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for shape in ((3, 7, 5), (4, 9, 6), (5, 11, 13)):
        inputs = batch(*shape)
        with torch.no_grad():
            torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=0)
    assert counter.frame_count == 1


@pytest.mark.parametrize("fields", [{"dropout": 0.1}, {"positional_encoding": "learned", "d_k": 5, "d_v": 11}])
def test_a_training_step_is_one_graph(fields: dict):
    model = build(**fields).train()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    compiled(input_ids=SOURCE, attention_mask=INPUTS["attention_mask"], labels=LABELS).loss.backward()
    assert counter.frame_count == 1
    assert all(parameter.grad is not None for parameter in model.model.decoder.layers.parameters())


def test_decoding_with_a_static_cache_is_compiled_once():
    model, graphs = build(), []

    def keep(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    settings = CompileConfig(backend=keep, mode=None, fullgraph=True, dynamic=False)
    settings._compile_all_devices = True  # Else only on accelerators.
    encoder_inputs = {"input_ids": SOURCE, "attention_mask": INPUTS["attention_mask"]}
    expected = model.generate(**encoder_inputs, num_beams=1, max_new_tokens=12)
    for _ in range(2):
        found = model.generate(
            **encoder_inputs,
            num_beams=1,
            max_new_tokens=12,
            cache_implementation="static",
            compile_config=settings,
        )
        assert torch.equal(found, expected)
    assert len(graphs) == 1


BATCH, LONG, SHORT = Dim("batch", min=2), Dim("source", min=2), Dim("target", min=2)


def test_exported_model_serves_every_shape():
    model = build()
    axes = {"input_ids": {0: BATCH, 1: LONG}, "attention_mask": {0: BATCH, 1: LONG}}
    axes["decoder_input_ids"] = {0: BATCH, 1: SHORT}
    inputs = {**batch(3, 7, 5), "use_cache": False}
    program = torch.export.export(model, (), inputs, dynamic_shapes={**axes, "use_cache": None})
    others = {**batch(4, 12, 9), "use_cache": False}
    torch.testing.assert_close(program.module()(**others).logits, model(**others).logits, atol=1e-5, rtol=0)


def test_exported_encoder_serves_every_shape():
    encoder = build().get_encoder()
    inputs, others = batch(3, 7, 5), batch(4, 12, 9)
    del inputs["decoder_input_ids"], others["decoder_input_ids"]
    program = torch.export.export(encoder, (), inputs, dynamic_shapes=dict.fromkeys(inputs, {0: BATCH, 1: LONG}))
    found = program.module()(**others).last_hidden_state
    torch.testing.assert_close(found, encoder(**others).last_hidden_state, atol=1e-5, rtol=0)
