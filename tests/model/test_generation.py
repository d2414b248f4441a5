"""Section 6.1: the search, its penalty and its limits."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from transformers import GenerationConfig

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.generation_vanilla_transformer import GoogleLengthPenalty

SOURCE = torch.tensor([[5, 9, 7, 8, 2], [11, 4, 2, 0, 0], [6, 2, 0, 0, 0]])
MASK = (SOURCE != 0).long()
PAD, START, END = 0, 1, 2


def five_word_model(seed: int, sharpness: float = 3.0) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(seed)
    config = VanillaTransformerConfig(
        vocab_size=5, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=2
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(sharpness)
    return model


def log_probabilities(model, source: torch.Tensor, hypotheses: torch.Tensor) -> torch.Tensor:
    """Teacher-forced log-probability of each target token, (hypotheses, length - 1), without a cache."""
    rows = source.expand(hypotheses.shape[0], -1)
    logits = model(input_ids=rows, attention_mask=(rows != PAD).long(), decoder_input_ids=hypotheses[:, :-1]).logits
    return logits.log_softmax(-1).gather(-1, hypotheses[:, 1:, None]).squeeze(-1)


def google_score(model, source: torch.Tensor, hypothesis: list[int], alpha: float) -> float:
    total = log_probabilities(model, source, torch.tensor([hypothesis])).sum().item()
    return total / ((5 + len(hypothesis) - 1) / 6) ** alpha


def until_end(row: list[int]) -> list[int]:
    return row[: row.index(END) + 1] if END in row else [token for token in row if token != PAD]


def exhaustive_best(model, source: torch.Tensor, longest: int, alpha: float) -> tuple[list[int], float]:
    """The best of all hypotheses that end, or that are as long as allowed."""
    words = [token for token in range(5) if token != END]
    best: tuple[list[int], float] = ([], -float("inf"))
    for length in range(1, longest + 1):
        last = range(5) if length == longest else [END]
        for tokens in itertools.product(*[words] * (length - 1), last):
            hypothesis = [START, *tokens]
            score = google_score(model, source, hypothesis, alpha)
            if score > best[1]:
                best = (hypothesis, score)
    return best


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.6), (2, 1.5)])
def test_beam_as_wide_as_the_space_finds_what_exhaustive_search_finds(seed: int, alpha: float):
    model, longest = five_word_model(seed), 4
    source = torch.tensor([[3, 4, 3, 2]])
    expected, score = exhaustive_best(model, source, longest, alpha)
    found = model.generate(
        input_ids=source,
        num_beams=4**longest + 5,
        max_new_tokens=longest,
        length_penalty=alpha,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert found.sequences_scores.item() == pytest.approx(score, abs=1e-5)
    assert until_end(found.sequences[0].tolist()[1:]) == until_end(expected[1:])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    beams=st.integers(2, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    beyond=st.integers(0, 9),
)
def test_scores_equal_a_teacher_forced_recomputation(seed: int, beams: int, alpha: float, beyond: int):
    model = five_word_model(seed)
    source = torch.tensor([[3, 4, 3, 4, 2], [4, 2, 0, 0, 0]])
    outputs = model.generate(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        num_beams=beams,
        num_return_sequences=2,
        length_penalty=alpha,
        max_length_beyond_source=beyond,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for row, (sequence, score) in enumerate(zip(outputs.sequences, outputs.sequences_scores, strict=True)):
        sentence = source[row // 2 : row // 2 + 1]
        length = int((outputs.beam_indices[row] >= 0).sum())
        hypothesis = sequence[: 1 + length].tolist()
        assert google_score(model, sentence, hypothesis, alpha) == pytest.approx(score.item(), abs=1e-5)
        assert (sequence[1 + length :] == PAD).all()


def test_defaults_are_the_papers(tiny_model):
    chosen = tiny_model.generation_config
    assert (chosen.num_beams, chosen.length_penalty, chosen.length_penalty_type) == (4, 0.6, "google")
    assert chosen.max_length_beyond_source == 50
    explicit = tiny_model.generate(
        input_ids=SOURCE,
        attention_mask=MASK,
        generation_config=GenerationConfig(
            num_beams=4, length_penalty=0.6, length_penalty_type="google", max_length_beyond_source=50
        ),
        early_stopping="never",
    )
    assert torch.equal(tiny_model.generate(input_ids=SOURCE, attention_mask=MASK), explicit)


@pytest.mark.parametrize("settings_", [{}, {"num_beams": 1}, {"do_sample": True, "num_beams": 1}, {"num_beams": 2}])
def test_each_sentence_has_its_own_limit(tiny_model, settings_: dict):
    never_ends = {"suppress_tokens": [END, PAD]}
    outputs = tiny_model.generate(input_ids=SOURCE, attention_mask=MASK, **settings_, **never_ends)
    assert (outputs != PAD).sum(-1).tolist() == [1 + 5 + 50, 1 + 3 + 50, 1 + 2 + 50]


@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_gives_what_each_sentence_gives_alone(tiny_model, side: str):
    source = SOURCE if side == "right" else torch.stack([row.roll(int((row == PAD).sum())) for row in SOURCE])
    together = tiny_model.generate(input_ids=source, attention_mask=(source != PAD).long())
    for row, sentence in zip(together.tolist(), SOURCE, strict=True):
        alone = tiny_model.generate(input_ids=sentence[sentence != PAD][None])[0].tolist()
        assert [t for t in row if t != PAD] == [t for t in alone if t != PAD]


def test_unknown_penalty_is_refused(tiny_model):
    with refused(ValueError, "'google'", "'huggingface'", "'Google'"):
        tiny_model.generate(input_ids=SOURCE, length_penalty_type="Google")


def test_beam_of_one_equals_greedy(tiny_model):
    by_hand = torch.full((3, 1), START)
    for _ in range(12):
        logits = tiny_model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=by_hand).logits[:, -1]
        by_hand = torch.cat((by_hand, logits.argmax(-1, keepdim=True)), dim=1)
    outputs = tiny_model.generate(input_ids=SOURCE, attention_mask=MASK, num_beams=1, max_new_tokens=12)
    for row, expected in zip(outputs.tolist(), by_hand.tolist(), strict=True):
        assert until_end(row) == until_end(expected)


def test_google_penalty_is_the_published_formula():
    assert 10 ** GoogleLengthPenalty(0.6) == pytest.approx(((5 + 10) / 6) ** 0.6)
    assert 1 ** GoogleLengthPenalty(0.6) == 1
