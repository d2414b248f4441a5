"""Everything that `generate` offers, held against the library's own search and against teacher forcing."""

import copy

import pytest
import torch
from refusals import refused
from transformers import (
    GenerationConfig,
)
from transformers.generation.streamers import BaseStreamer

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

PAD, START, END, WORDS = 0, 1, 2, 9
SOURCE = torch.tensor([[5, 3, 7, 8, END], [4, 6, END, PAD, PAD], [6, END, PAD, PAD, PAD]])
MASK = (SOURCE != PAD).long()
INPUTS = {"input_ids": SOURCE, "attention_mask": MASK}


def few_words(seed: int, cls=VanillaTransformerForConditionalGeneration, **fields):
    """A random model of nine types, so sure of itself that its sentences end and its hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    model = cls(VanillaTransformerConfig(**{"vocab_size": WORDS, **sizes, **fields})).eval()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3.0)
    return model


@pytest.fixture(scope="module")
def model() -> VanillaTransformerForConditionalGeneration:
    return few_words(0)


def forced(model, sequences: torch.Tensor, rows: torch.Tensor, prompt: int = 1) -> torch.Tensor:
    """Teacher-forced logits of the tokens after the prompt, without a cache, (sequences, new tokens, types)."""
    logits = model(input_ids=SOURCE[rows], attention_mask=MASK[rows], decoder_input_ids=sequences[:, :-1]).logits
    return logits[:, prompt - 1 :]


def taken(logits: torch.Tensor, sequences: torch.Tensor, prompt: int = 1) -> torch.Tensor:
    return logits.log_softmax(-1).gather(-1, sequences[:, prompt:, None]).squeeze(-1)


def until_end(row: list[int]) -> list[int]:
    return row[: row.index(END, 1) + 1] if END in row[1:] else row


@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 3}])
def test_transition_scores_agree_with_teacher_forcing(model, search: dict):
    found = model.generate(
        **INPUTS, **search, max_new_tokens=7, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    beams = getattr(found, "beam_indices", None)
    scores = model.compute_transition_scores(found.sequences, found.scores, beams, normalize_logits=beams is None)
    rows = torch.arange(len(SOURCE)).repeat_interleave(search.get("num_return_sequences", 1))
    expected = taken(forced(model, found.sequences, rows), found.sequences)
    for row, sequence in enumerate(found.sequences.tolist()):
        length = len(until_end(sequence)) - 1
        torch.testing.assert_close(scores[row, :length], expected[row, :length], atol=1e-5, rtol=0)
        if beams is not None:
            total = expected[row, :length].sum() / ((5 + length) / 6) ** 0.6
            torch.testing.assert_close(found.sequences_scores[row], total, atol=1e-5, rtol=0)


class Collected(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[torch.Tensor] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.pieces.append(value.reshape(-1))

    def end(self) -> None:
        self.ended = True


def test_streamer_is_given_each_token(model):
    streamer = Collected()
    found = model.generate(input_ids=SOURCE[:1], num_beams=1, streamer=streamer)
    assert torch.equal(torch.cat(streamer.pieces), found[0])
    assert streamer.ended
    with refused(ValueError, "streamer"):
        model.generate(input_ids=SOURCE[:1], streamer=Collected())


def test_assisted_decoding_gives_what_greedy_search_gives(model):
    expected = model.generate(input_ids=SOURCE[:1], num_beams=1)
    for assistant in (model, few_words(9)):
        found = model.generate(input_ids=SOURCE[:1], num_beams=1, assistant_model=assistant)
        assert torch.equal(found, expected)
    assert torch.equal(model.generate(input_ids=SOURCE[:1], num_beams=1, prompt_lookup_num_tokens=2), expected)


def scores(model, **asked) -> torch.Tensor:
    return model.generate(**INPUTS, **asked, output_scores=True, return_dict_in_generate=True).sequences_scores


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
    given = GenerationConfig(num_beams=2, max_new_tokens=3)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(
        tmp_path / "file lost", generation_config=given
    )
    assert (loaded.generation_config.num_beams, loaded.generation_config.max_new_tokens) == (2, 3)


def test_a_generation_config_that_says_which_penalty_keeps_it(model, tmp_path):
    by_library = scores(model, num_beams=4, length_penalty_type="huggingface", length_penalty=1.0)
    by_paper = scores(model)
    assert not torch.allclose(by_library, by_paper)
    theirs = GenerationConfig(num_beams=4, length_penalty_type="huggingface", length_penalty=1.0)
    theirs.save_pretrained(tmp_path)
    for given in (theirs, GenerationConfig.from_pretrained(tmp_path)):
        assert torch.equal(scores(model, generation_config=given), by_library)
    # And the other way round: a model of the library's penalty, and settings of the paper's model.
    of_library = copy.deepcopy(model)
    of_library.generation_config = theirs
    assert torch.equal(scores(of_library, generation_config=model.generation_config), by_paper)


@pytest.mark.parametrize("asked", [{"num_beams": 1}, {"num_beams": 4}, {"do_sample": True}], ids=str)
def test_rows_of_a_model_without_an_end_stop_at_their_own_limit(asked: dict):
    model = few_words(0)
    model.generation_config.eos_token_id = None
    found = model.generate(**INPUTS, **asked, max_length_beyond_source=2, suppress_tokens=[PAD])
    assert (found != PAD).sum(1).tolist() == [1 + 5 + 2, 1 + 3 + 2, 1 + 2 + 2]


@pytest.mark.parametrize("asked", [{}, {"num_beams": 1}, {"output_scores": True, "return_dict_in_generate": True}])
def test_a_model_without_a_padding_token_decodes(asked: dict):
    source = INPUTS["input_ids"][:1]
    expected = few_words(0).generate(source, **asked)
    found = few_words(0, pad_token_id=None).generate(source, **asked)
    rows = [(one if isinstance(one, torch.Tensor) else one.sequences)[0].tolist() for one in (found, expected)]
    assert until_end(rows[0]) == until_end(rows[1])
