"""Samples of translations: drawn by the model's probabilities, and the same again whatever stands beside a line."""

import random

import pytest
import torch
from refusals import refused

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from vanilla_transformer.extras.sampling.samples import SampledByRow, Sampling
from vanilla_transformer.translation import translate_lines

SIZES = {"vocab_size": 260, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
LINES = ["a b c", "", "the longest line of them all", "d", "e f", "a b", "c d e f g", "h"]


def transformer():
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**SIZES))


def recurrent():
    return RecurrentEncoderDecoderForConditionalGeneration(
        RecurrentEncoderDecoderConfig(vocab_size=260, d_model=16, num_layers=1)
    )


@pytest.fixture(scope="module")
def tokenizer():
    return VanillaTransformerTokenizer.train(LINES, vocab_size=SIZES["vocab_size"])


@pytest.fixture(scope="module", params=[transformer, recurrent])
def model(request):
    torch.manual_seed(0)
    return request.param().eval()


def samples(model, tokenizer, lines, **settings):
    settings = {"sampling": Sampling(), "max_length_beyond_source": 4, **settings}
    return [one.text for one in translate_lines(model, tokenizer, lines, **settings)]


def test_a_sample_follows_from_its_line_and_the_seed_alone(model, tokenizer):
    whole = samples(model, tokenizer, LINES)
    assert len(set(whole)) == len(LINES) and whole[1] == ""
    assert samples(model, tokenizer, LINES, batch_tokens=12) == whole
    assert [samples(model, tokenizer, [line])[0] for line in LINES] == whole
    order = random.Random(0).sample(range(len(LINES)), len(LINES))
    assert samples(model, tokenizer, [LINES[place] for place in order]) == [whole[place] for place in order]
    other = samples(model, tokenizer, LINES, sampling=Sampling(seed=2))
    assert [a == b for a, b in zip(whole, other, strict=True)] == [not line for line in LINES]


def test_fast_path_and_library_draw_alike_from_their_own_generator(model, tokenizer):
    before = torch.get_rng_state()
    fast = samples(model, tokenizer, LINES, sampling=Sampling(top_k=100, top_p=0.9, temperature=0.7))
    assert torch.equal(torch.get_rng_state(), before)
    settings = {"sampling": Sampling(top_k=100, top_p=0.9, temperature=0.7), "use_cache": False}
    assert samples(model, tokenizer, LINES, **settings) == fast


def test_the_likeliest_token_alone_is_greedy_search(model, tokenizer):
    greedy = samples(model, tokenizer, LINES, sampling=None, num_beams=1)
    assert samples(model, tokenizer, LINES, sampling=Sampling(top_k=1)) == greedy
    assert samples(model, tokenizer, LINES, sampling=Sampling(top_p=1e-9)) == greedy
    assert samples(model, tokenizer, LINES, sampling=Sampling(temperature=1e-4)) == greedy


def test_several_samples_of_a_line_differ_and_the_first_is_the_only_one(model, tokenizer):
    [three] = translate_lines(
        model, tokenizer, ["a b c"], sampling=Sampling(), num_return_sequences=3, max_length_beyond_source=4
    )
    drawn = [hypothesis.text for hypothesis in three.hypotheses]
    assert len(set(drawn)) == 3 and drawn[:1] == samples(model, tokenizer, ["a b c"])


def test_tokens_are_drawn_as_often_as_they_are_likely():
    draws = 20_000
    p_V = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.25, 0.0])
    drawn = SampledByRow(range(draws)).draw(p_V.log().expand(draws, -1), torch.arange(draws), 1)
    shares = torch.bincount(drawn.flatten(), minlength=len(p_V)) / draws
    # Five standard deviations.
    assert bool((shares - p_V).abs().le(5 * (p_V * (1 - p_V) / draws).sqrt()).all())


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_numbers_at_both_ends_draw_a_token_that_there_is(number):
    processor = SampledByRow([0])
    processor._uniforms_RT = torch.full((1, 4), number, dtype=torch.float64)
    scores = torch.tensor([[-torch.inf, 1.0, 2.0, -torch.inf]])
    assert processor.draw(scores, torch.arange(1), 1).item() == (1 if number == 0 else 2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[("top_k", value) for value in (0, 2.5)],
        *[("top_p", value) for value in (0.0, 1.1, float("nan"))],
        *[("temperature", value) for value in (0.0, -1.0, float("nan"))],
        *[("seed", value) for value in (1.5, "1", None, True)],
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, value):
    with refused(ValueError, setting):
        Sampling(**{setting: value})
