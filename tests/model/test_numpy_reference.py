"""Models, losses and the search equal a reference in NumPy that reads the same files."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import IGNORED_LABEL, Reference, label_smoothed_loss
from refusals import refused
from small_models import SIZES, save, save_translator

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.translation import load_model, translate_lines

TEXTS = ["a b c d", "two men wait for a bus", "", "naïve"]
# Each of the rows ends in padding but the first.
SOURCE = [[5, 6, 7, 8, 2], [9, 9, 2, 0, 0]]
TARGET = [[1, 30, 31, 32], [1, 40, 41, 0]]
LABELS = [[30, 31, 32, 2], [40, 41, 2, IGNORED_LABEL]]
FAMILIES = {
    "encoder-decoder": (VanillaTransformerForConditionalGeneration, VanillaTransformerConfig),
    "encoder": (VanillaTransformerEncoderForMaskedLM, VanillaTransformerEncoderConfig),
    "decoder": (VanillaTransformerDecoderForCausalLM, VanillaTransformerDecoderConfig),
}
FIELDS = st.fixed_dictionaries(
    {"num_heads": st.sampled_from([1, 2, 4]), "seed": st.integers(0, 99)},
    optional={
        "d_k": st.integers(1, 9),
        "d_v": st.integers(1, 9),
        "activation_function": st.sampled_from(["gelu", "tanh"]),
        "layer_norm_eps": st.just(0.1),
    },
)


def saved(family, directory, *, seed, **fields):
    model_class, config_class = FAMILIES[family]
    stacks = {"encoder-decoder": ("encoder", "decoder")}.get(family, (family,))
    sizes = {"vocab_size": 260, "d_model": 16, "d_ff": 24, **{f"{stack}_layers": 2 for stack in stacks}}
    torch.manual_seed(seed)
    model = model_class(config_class(**sizes, **fields, dropout=0.0, label_smoothing=0.1))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(torch.randn_like(weight), alpha=0.3)
    save(model, VanillaTransformerTokenizer.train(["a b"], vocab_size=260), directory)
    return model, Reference(directory)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8)
@given(fields=FIELDS)
def test_logits_and_losses_of_all_families(family, fields, tmp_path_factory):
    model, reference = saved(family, tmp_path_factory.mktemp("model"), **fields)
    source, labels = torch.tensor(SOURCE), torch.tensor(LABELS)
    inputs, ids = {"input_ids": source, "attention_mask": source.ne(0).long()}, [SOURCE]
    if family == "encoder-decoder":
        inputs["decoder_input_ids"], ids = torch.tensor(TARGET), [SOURCE, TARGET]
        counts, wanted = torch.tensor(TARGET).ne(0), labels
    else:
        counts = source.ne(0)
        labels = source.masked_fill(~counts, IGNORED_LABEL)
        shifted = torch.cat((labels[:, 1:], torch.full((2, 1), IGNORED_LABEL)), 1)
        wanted = shifted if family == "decoder" else labels
    logits = reference.logits(*ids)
    for training in (False, True):
        outputs = model.train(training)(**inputs, labels=labels)
        np.testing.assert_allclose(outputs.logits.detach()[counts], logits[counts.numpy()], atol=1e-4)
        loss = label_smoothed_loss(logits, wanted.numpy(), 0.1 if training else 0.0)
        assert outputs.loss.item() == pytest.approx(loss, abs=1e-5)
        without_logits = model(**inputs, labels=labels, skip_logits=True)
        assert without_logits.loss.item() == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 1}, {"num_beams": 3, "length_penalty": 2.0}])
def test_translations_are_the_references(settings, tmp_path):
    place, settings = save_translator(tmp_path, decoder_layers=2), {"max_length_beyond_source": 9, **settings}
    ours = [line.text for line in translate_lines(*load_model(place, device="cpu"), TEXTS, **settings)]
    assert ours == [Reference(place).translate(line, **settings) for line in TEXTS]


def test_the_reference_takes_no_weights_that_contradict_the_configuration(tmp_path):
    save_translator(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace(f'"d_ff": {SIZES["d_ff"]}', '"d_ff": 7'))
    with refused(Exception, "w_1"):
        Reference(tmp_path)
