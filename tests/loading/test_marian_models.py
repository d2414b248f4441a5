"""Marian models become ours and come back: the same logits, the same search, the same weights."""

import pytest
import torch
from opus_models import END, PAD, opus, random_marian
from refusals import refused
from small_models import random_model, unigram_tokenizer
from transformers import MarianMTModel

from vanilla_transformer.errors import ModelError
from vanilla_transformer.export.conversion import as_marian
from vanilla_transformer.loading.marian import from_marian, to_marian

SOURCE = torch.tensor([[5, 9, 7, 8, END], [11, 4, END, PAD, PAD]])
TARGET = torch.tensor([[PAD, 6, 3, 12], [PAD, 9, 2, 40]])
INPUTS = {"input_ids": SOURCE, "attention_mask": (SOURCE != PAD).long()}


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(**INPUTS, decoder_input_ids=TARGET).logits


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "gelu"},
        {"scale_embedding": False},
        {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
        {"decoder_vocab_size": 80, "share_encoder_decoder_embeddings": False},
    ],
    ids=str,
)
def test_logits_of_a_marian_model_stay_the_same(changes: dict):
    marian = random_marian(opus(**changes))
    expected, actual = logits(marian), logits(from_marian(marian))
    types = expected.shape[-1]
    torch.testing.assert_close(actual[..., :types], expected, atol=1e-5, rtol=1e-5)
    # Types that the target does not have get no probability.
    torch.testing.assert_close(actual.softmax(-1)[..., :types], expected.softmax(-1), atol=1e-6, rtol=1e-5)


def test_logits_of_our_model_with_three_embeddings_stay_the_same(tmp_path):
    ours = random_model("translator", vocab_size=60, tie_word_embeddings=False)
    assert not ours.config.attention_bias and ours.config.layer_norm_eps == 1e-6
    to_marian(ours).save_pretrained(tmp_path)
    theirs = MarianMTModel.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(theirs), logits(ours), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"d_k": 4}, "d_k 4"),
        ({"d_v": 4}, "d_v 4"),
        ({"positional_encoding": "learned"}, "learned positions"),
    ],
)
def test_models_that_marian_cannot_express_are_refused(changes: dict, named: str):
    with refused(ModelError, *named.split()):
        as_marian(random_model("translator", **changes), unigram_tokenizer(["a b"], 260))


@pytest.mark.parametrize(
    ("changes", "named"), [({"decoder_attention_heads": 8}, "4 8"), ({"decoder_ffn_dim": 40}, "64 40")]
)
def test_a_marian_model_of_another_architecture_is_refused(changes, named):
    with refused(ModelError, *named.split()):
        from_marian(MarianMTModel(opus(**changes)))
