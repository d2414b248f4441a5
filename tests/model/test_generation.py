"""Section 6.1, and what `generate` offers, beside teacher forcing, an exhaustive search and greedy steps by hand."""

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st
from refusals import refused
from searches import END, PAD, START, sharp
from transformers import GenerationConfig

from vanilla_transformer import VanillaTransformerForConditionalGeneration

SOURCE = torch.tensor([[5, 3, 7, 8, END], [4, 6, END, PAD, PAD], [6, END, PAD, PAD, PAD]])
MASK = (SOURCE != PAD).long()
INPUTS = {"input_ids": SOURCE, "attention_mask": MASK}


@pytest.fixture(scope="module")
def model() -> VanillaTransformerForConditionalGeneration:
    return sharp(0, vocab_size=9)


def log_probabilities(model, source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Teacher-forced log-probability of each target token after the first, without a cache."""
    mask = (source != PAD).long()
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=targets[:, :-1]).logits
    return logits.log_softmax(-1).gather(-1, targets[:, 1:, None]).squeeze(-1)


def google_score(model, source: torch.Tensor, target: list[int], alpha: float) -> float:
    total = log_probabilities(model, source, torch.tensor([target])).sum().item()
    return total / ((5 + len(target) - 1) / 6) ** alpha


def until_end(row: list[int]) -> list[int]:
    return row[: row.index(END) + 1] if END in row else [token for token in row if token != PAD]


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.6), (2, 1.5)])
def test_beam_as_wide_as_the_space_finds_what_exhaustive_search_finds(seed: int, alpha: float):
    model, longest, source = sharp(seed, vocab_size=5), 4, torch.tensor([[3, 4, 3, 2]])
    hypotheses = [
        [START, *tokens, last]
        for length in range(1, longest + 1)
        for tokens in itertools.product((PAD, START, 3, 4), repeat=length - 1)
        for last in (range(5) if length == longest else [END])
    ]
    scores = {tuple(each): google_score(model, source, each, alpha) for each in hypotheses}
    found = model.generate(
        input_ids=source,
        num_beams=4**longest + 5,
        max_new_tokens=longest,
        length_penalty=alpha,
        return_dict_in_generate=True,
        output_scores=True,
    )
    best = max(scores, key=scores.get)
    assert found.sequences_scores.item() == pytest.approx(scores[best], abs=1e-5)
    assert until_end(found.sequences[0].tolist()[1:]) == until_end(list(best[1:]))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    beams=st.integers(2, 6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    beyond=st.integers(0, 9),
)
def test_scores_equal_a_teacher_forced_recomputation(seed: int, beams: int, alpha: float, beyond: int):
    model = sharp(seed, vocab_size=5)
    source = torch.tensor([[3, 4, 3, 4, 2], [4, 2, 0, 0, 0]])
    search = {
        "num_beams": beams,
        "num_return_sequences": 2,
        "length_penalty": alpha,
        "max_length_beyond_source": beyond,
    }
    outputs = model.generate(
        source, attention_mask=source.ne(PAD), **search, return_dict_in_generate=True, output_scores=True
    )
    for row, (sequence, score) in enumerate(zip(outputs.sequences, outputs.sequences_scores, strict=True)):
        length = int((outputs.beam_indices[row] >= 0).sum())
        expected = google_score(model, source[row // 2 :][:1], sequence[: 1 + length].tolist(), alpha)
        assert expected == pytest.approx(score.item(), abs=1e-5)
        assert (sequence[1 + length :] == PAD).all()


def test_defaults_are_the_papers(model):
    paper = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "google", "max_length_beyond_source": 50}
    assert {name: getattr(model.generation_config, name) for name in paper} == paper
    explicit = model.generate(**INPUTS, generation_config=GenerationConfig(**paper), early_stopping="never")
    assert torch.equal(model.generate(**INPUTS), explicit)
    with refused(ValueError, "'google'", "'huggingface'", "'Google'"):
        model.generate(**INPUTS, length_penalty_type="Google")


@pytest.mark.parametrize("asked", [{}, {"num_beams": 1}, {"do_sample": True}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("ends", [END, None])
def test_each_sentence_has_its_own_limit(asked: dict, ends: int | None):
    model, never = sharp(0, vocab_size=9), [PAD] if ends is None else [PAD, END]
    model.generation_config.eos_token_id = ends
    found = model.generate(**INPUTS, **asked, suppress_tokens=never)
    assert (found != PAD).sum(1).tolist() == [1 + 5 + 50, 1 + 3 + 50, 1 + 2 + 50]


@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_gives_what_each_sentence_gives_alone(model, side: str):
    source = SOURCE if side == "right" else torch.stack([row.roll(int((row == PAD).sum())) for row in SOURCE])
    together = model.generate(input_ids=source, attention_mask=(source != PAD).long())
    for row, sentence in zip(together.tolist(), SOURCE, strict=True):
        alone = model.generate(input_ids=sentence[sentence != PAD][None])[0].tolist()
        assert until_end(row) == until_end(alone)


def test_beam_of_one_equals_greedy_steps_and_assisted_decoding(model):
    by_hand = torch.full((3, 1), START)
    for _ in range(12):
        logits = model(**INPUTS, decoder_input_ids=by_hand).logits[:, -1]
        by_hand = torch.cat((by_hand, logits.argmax(-1, keepdim=True)), dim=1)
    found = model.generate(**INPUTS, num_beams=1, max_new_tokens=12)
    assert list(map(until_end, found.tolist())) == list(map(until_end, by_hand.tolist()))
    expected = model.generate(SOURCE[:1], num_beams=1)
    for asked in ({"assistant_model": sharp(9, vocab_size=9)}, {"prompt_lookup_num_tokens": 2}):
        assert torch.equal(model.generate(SOURCE[:1], num_beams=1, **asked), expected)


def test_a_checkpoint_without_its_generation_config_decodes_as_the_paper(model, tmp_path):
    model.model.save_pretrained(tmp_path / "base model")
    model.save_pretrained(tmp_path / "file lost")
    (tmp_path / "file lost" / "generation_config.json").unlink()
    for directory in ("base model", "file lost"):
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / directory)
        assert loaded.generation_config.to_diff_dict() == model.generation_config.to_diff_dict()
        assert torch.equal(loaded.generate(**INPUTS), model.generate(**INPUTS))
        loaded.save_pretrained(tmp_path / "again")
        again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "again")
        assert again.generation_config.length_penalty_type == "google"
    theirs = GenerationConfig(num_beams=2, max_new_tokens=3)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "again", generation_config=theirs)
    assert (loaded.generation_config.num_beams, loaded.generation_config.max_new_tokens) == (2, 3)


@pytest.mark.parametrize("asked", [{}, {"num_beams": 1}, {"output_scores": True, "return_dict_in_generate": True}])
def test_a_model_without_a_padding_token_decodes(model, asked: dict):
    found = [each.generate(SOURCE[:1], **asked) for each in (sharp(0, vocab_size=9, pad_token_id=None), model)]
    rows = [(one if isinstance(one, torch.Tensor) else one.sequences)[0].tolist() for one in found]
    assert until_end(rows[0]) == until_end(rows[1])
