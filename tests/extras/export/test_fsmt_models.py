"""FSMT models become ours: fairseq's positions, untied matrices, two vocabularies."""

import pytest
import torch
from refusals import refused
from transformers import FSMTConfig, FSMTForConditionalGeneration

from vanilla_transformer.extras.export.fsmt import from_fsmt

END, PAD = 2, 1
SOURCE = torch.tensor([[5, 9, 7, 8, END], [11, 4, END, PAD, PAD]])
TARGET = torch.tensor([[END, 6, 3, 12], [END, 9, 4, 40]])
INPUTS = {"input_ids": SOURCE, "attention_mask": (SOURCE != PAD).long()}


def random_fsmt(**changes) -> FSMTForConditionalGeneration:
    torch.manual_seed(0)
    settings = {
        "src_vocab_size": 60,
        "tgt_vocab_size": 60,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "max_position_embeddings": 32,
    }
    model = FSMTForConditionalGeneration(FSMTConfig(**settings | changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("vocabularies", [(60, 60), (60, 50), (50, 60)], ids=str)
def test_logits_stay_the_same_whatever_the_vocabularies(vocabularies: tuple[int, int]):
    source, target = vocabularies
    fsmt = random_fsmt(src_vocab_size=source, tgt_vocab_size=target)
    ours = from_fsmt(fsmt)
    assert not ours.config.tie_word_embeddings
    with torch.no_grad():
        # With a cache FSMT takes its input for one step of a search, and masks no later position.
        expected = fsmt(**INPUTS, decoder_input_ids=TARGET, use_cache=False).logits
        actual = ours(**INPUTS, decoder_input_ids=TARGET).logits
    torch.testing.assert_close(actual[..., :target], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(actual.softmax(-1)[..., :target], expected.softmax(-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 5])
def test_the_search_gives_the_same_translations(num_beams: int):
    fsmt = random_fsmt()
    expected = fsmt.generate(**INPUTS, num_beams=num_beams, max_length=12)
    actual = from_fsmt(fsmt).generate(
        **INPUTS, num_beams=num_beams, max_length=12, length_penalty=1.0, early_stopping=False,
        length_penalty_type="huggingface", forced_eos_token_id=END,
    )  # fmt: skip
    assert actual.tolist() == expected.tolist()


def test_positions_reach_to_the_end_of_the_table_and_no_further():
    ours = from_fsmt(random_fsmt())
    long = torch.full((1, 32), 5)
    assert ours(input_ids=long, decoder_input_ids=TARGET[:1]).logits.isfinite().all()
    with refused(ValueError, "33", "32"):
        ours(input_ids=torch.full((1, 33), 5), decoder_input_ids=TARGET[:1])
