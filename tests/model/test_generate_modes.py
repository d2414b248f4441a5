"""Everything that `generate` offers, held against the library's own search and against teacher forcing."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from searches import Google, LibrarySearch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.generation_vanilla_transformer import paper_generation_config

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


def assert_same_hypotheses(ours, theirs) -> None:
    """Same tokens; after them ours has padding, as in greedy search, where the library repeats `</s>`."""
    lengths = 1 + (theirs.beam_indices >= 0).sum(-1)
    assert torch.equal(1 + (ours.beam_indices >= 0).sum(-1), lengths)
    for our_row, their_row, length in zip(ours.sequences, theirs.sequences, lengths, strict=True):
        assert our_row[:length].tolist() == their_row[:length].tolist()
        assert set(our_row[length:].tolist()) <= {PAD}


SEARCHES = st.fixed_dictionaries(
    {"num_beams": st.integers(2, 5), "max_length_beyond_source": st.integers(0, 8)},
    optional={
        "early_stopping": st.sampled_from([True, False, "never"]),
        "no_repeat_ngram_size": st.just(2),
        "repetition_penalty": st.just(1.3),
        "min_new_tokens": st.integers(1, 4),
        "bad_words_ids": st.just([[5], [3, 7]]),
        "forced_eos_token_id": st.just(END),
        "suppress_tokens": st.just([PAD]),
        "eos_token_id": st.just([END, 7]),
        "exponential_decay_length_penalty": st.just((2, 1.5)),
        "renormalize_logits": st.just(True),
    },
)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 50), alpha=st.sampled_from([0.0, 0.6, 1.0, 1.7]), search=SEARCHES, returned=st.integers(1, 2)
)
def test_beam_search_finds_what_the_librarys_finds_with_the_same_penalty(seed, alpha, search, returned):
    wanted = {**INPUTS, **search, "num_return_sequences": returned}
    wanted |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    ours = few_words(seed).generate(**wanted, length_penalty=alpha)
    theirs = few_words(seed, LibrarySearch).generate(**wanted, length_penalty=Google(alpha))
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores)
    assert_same_hypotheses(ours, theirs)
    torch.testing.assert_close(ours.scores[0], theirs.scores[0])
    torch.testing.assert_close(ours.logits[0], theirs.logits[0])


def test_huggingface_penalty_gives_what_the_librarys_search_gives(model):
    search = {"num_beams": 4, "length_penalty": 1.5, "return_dict_in_generate": True, "output_scores": True}
    ours = model.generate(**INPUTS, **search, length_penalty_type="huggingface")
    theirs = few_words(0, LibrarySearch).generate(**INPUTS, **search)
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores)
    assert_same_hypotheses(ours, theirs)


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


@pytest.mark.parametrize(
    "warp", [{"temperature": 0.7, "top_k": 0}, {"temperature": 1.0, "top_k": 3}, {"top_k": 0, "top_p": 0.6}]
)
def test_samples_follow_the_warped_distribution(model, warp: dict):
    torch.manual_seed(1)
    found = model.generate(
        input_ids=SOURCE[:1],
        do_sample=True,
        num_return_sequences=4000,
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
        **warp,
    )
    p = (forced(model, found.sequences[:1], torch.tensor([0]))[0, 0] / warp.get("temperature", 1.0)).softmax(-1)
    if warp["top_k"]:
        p = p * (p >= p.topk(warp["top_k"]).values[-1])
    if "top_p" in warp:
        ordered = p.sort(descending=True)
        kept = ordered.values.cumsum(0) - ordered.values < warp["top_p"]
        p = p * torch.zeros(WORDS, dtype=torch.bool).scatter(0, ordered.indices, kept)
    p = p / p.sum()
    torch.testing.assert_close(found.scores[0][0].softmax(-1), p, atol=1e-5, rtol=0)
    shares = torch.bincount(found.sequences[:, 1], minlength=WORDS) / 4000
    assert shares[p == 0].sum() == 0
    assert (shares - p).abs().max() < 4 * 0.5 / 4000**0.5  # Four standard deviations at most.


def test_sampling_has_a_seed_and_ends_in_greedy_search(model):
    greedy = model.generate(**INPUTS, num_beams=1)
    for warp in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        assert torch.equal(model.generate(**INPUTS, do_sample=True, num_beams=1, **warp), greedy)
    twice = []
    for _ in range(2):
        torch.manual_seed(3)
        twice.append(model.generate(**INPUTS, do_sample=True, num_beams=1, num_return_sequences=3))
    assert torch.equal(*twice)
    assert twice[0].shape[0] == 9


def test_beam_sampling_scores_what_it_draws(model):
    torch.manual_seed(5)
    found = model.generate(
        **INPUTS,
        do_sample=True,
        num_beams=4,
        num_return_sequences=2,
        top_k=0,
        max_new_tokens=6,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = torch.arange(len(SOURCE)).repeat_interleave(2)
    log_p = taken(forced(model, found.sequences, rows), found.sequences)
    for row, sequence in enumerate(found.sequences.tolist()):
        length = len(until_end(sequence)) - 1
        expected = log_p[row, :length].sum() / ((5 + length) / 6) ** 0.6
        torch.testing.assert_close(found.sequences_scores[row], expected, atol=1e-4, rtol=0)


def test_a_beam_asked_of_a_model_of_greedy_search_has_the_papers_penalty(model):
    def scores(of, **search) -> torch.Tensor:
        return of.generate(**INPUTS, **search, output_scores=True, return_dict_in_generate=True).sequences_scores

    by_length = {"length_penalty_type": "huggingface", "early_stopping": "never"}
    alpha_06, alpha_1 = scores(model), scores(model, length_penalty=1.0)
    length_1 = scores(model, length_penalty=1.0, **by_length)
    assert not torch.allclose(alpha_06, alpha_1) and not torch.allclose(alpha_1, length_1)

    greedy = copy.deepcopy(model)
    greedy.generation_config = paper_generation_config(model.config, num_beams=1)
    assert torch.equal(scores(greedy, num_beams=4), alpha_06)
    # What a configuration that is given does not say is the model's own, as with arguments.
    given = {"num_beams": 4, "early_stopping": "never"}
    assert torch.equal(scores(greedy, generation_config=GenerationConfig(**given)), alpha_06)
    of_library = GenerationConfig(**given, length_penalty=1.0, length_penalty_type="huggingface")
    assert torch.equal(scores(greedy, generation_config=of_library), length_1)
    assert torch.equal(scores(greedy, num_beams=4, length_penalty=1.0), alpha_1)
    assert torch.equal(scores(greedy, num_beams=4, **by_length), length_1)
    greedy.generation_config.length_penalty = 1.0
    assert torch.equal(scores(greedy, num_beams=4), alpha_1)


def test_settings_of_a_beam_raise_no_warning_without_one(model, caplog):
    logging.enable_propagation()
    try:
        model.generate(**INPUTS, num_beams=1)
        model.generate(**INPUTS, do_sample=True)
        model.generate(**INPUTS, generation_config=GenerationConfig(num_beams=1))
        model.generate(**INPUTS)
    finally:
        logging.disable_propagation()
    assert not caplog.records


def test_length_of_the_models_own_generation_config_counts(model):
    mine = copy.deepcopy(model)
    mine.generation_config.max_new_tokens = 3
    assert mine.generate(**INPUTS, suppress_tokens=[END, PAD]).shape[1] == 1 + 3
    mine.generation_config.max_new_tokens, mine.generation_config.max_length = None, 9
    assert mine.generate(**INPUTS, suppress_tokens=[END, PAD]).shape[1] == 9


def test_without_any_input_the_source_is_one_start_token(model):
    assert torch.equal(model.generate(), model.generate(input_ids=torch.tensor([[START]])))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("use_cache", [True, False])
def test_everything_asked_for_is_returned(beams: int, use_cache: bool):
    model = few_words(0)
    model.set_attn_implementation("eager")
    found = model.generate(
        **INPUTS,
        num_beams=beams,
        max_new_tokens=4,
        min_new_tokens=4,
        use_cache=use_cache,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    rows = 3 * beams
    for name in ("scores", "logits", "decoder_attentions", "cross_attentions", "decoder_hidden_states"):
        assert len(found[name]) == 4, name
    assert all(step.shape == (rows, WORDS) for step in (*found.scores, *found.logits))
    for step, layers in enumerate(found.decoder_attentions):
        queries = 1 if use_cache else step + 1
        assert [maps.shape for maps in layers] == [(rows, 2, queries, step + 1)] * 2
        assert [maps.shape for maps in found.cross_attentions[step]] == [(rows, 2, queries, 5)] * 2
        assert [states.shape for states in found.decoder_hidden_states[step]] == [(rows, queries, 16)] * 3
    assert [maps.shape for maps in found.encoder_attentions] == [(3, 2, 5, 5)]
    assert [states.shape for states in found.encoder_hidden_states] == [(3, 5, 16)] * 2
    assert (found.past_key_values is not None) == use_cache


class Never(LogitsProcessor):
    """Forbids a token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor([self.token]), -float("inf"))


class AtLength(StoppingCriteria):
    """Ends every hypothesis at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("search", [{}, {"num_beams": 1}, {"do_sample": True}])
def test_processors_and_criteria_of_the_caller_are_followed(model, search: dict):
    torch.manual_seed(0)
    greedy = model.generate(**INPUTS, num_beams=1)
    forbidden = int(greedy[0, 1])
    found = model.generate(**INPUTS, **search, logits_processor=LogitsProcessorList([Never(forbidden)]))
    assert not (found == forbidden).any()
    found = model.generate(
        **INPUTS, **search, suppress_tokens=[END], stopping_criteria=StoppingCriteriaList([AtLength(6)])
    )
    assert found.shape[1] == 6
    allowed = model.generate(**INPUTS, **search, prefix_allowed_tokens_fn=lambda row, ids: [3 + row, END])
    for row, sequence in enumerate(allowed.tolist()):
        assert set(sequence[1:]) <= {3 + row, END, PAD}


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


@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 4}])
@pytest.mark.parametrize("widths", [{}, {"d_k": 5, "d_v": 11}])
def test_static_cache_changes_nothing(search: dict, widths: dict):
    model = few_words(2, **widths)
    for inputs in (INPUTS, {name: value[:2, :4] for name, value in INPUTS.items()}):
        expected = model.generate(**inputs, **search)
        assert torch.equal(model.generate(**inputs, **search, cache_implementation="static"), expected)


@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 4}])
def test_forced_prefix_is_continued_as_if_it_had_been_found(model, search: dict):
    prefix = torch.tensor([[START, 6, 3], [START, 8, 4], [START, 5, 5]])
    found = model.generate(
        **INPUTS,
        **search,
        decoder_input_ids=prefix,
        max_new_tokens=4,
        min_new_tokens=4,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert torch.equal(found.sequences[:, :3], prefix)
    logits = forced(model, found.sequences, torch.arange(3), prompt=3)
    if search["num_beams"] == 1:
        forbidden = logits[:, :3].index_fill(-1, torch.tensor([END]), -float("inf"))  # min_new_tokens
        assert torch.equal(found.sequences[:, 3:6], forbidden.argmax(-1))
    else:
        total = taken(logits, found.sequences, prompt=3).sum(-1)
        torch.testing.assert_close(found.sequences_scores, total / ((5 + 4) / 6) ** 0.6, atol=1e-5, rtol=0)


def test_a_prefix_without_the_start_token_is_given_one(model):
    with_start = torch.tensor([[START, 6, 3]]).expand(3, -1)
    expected = model.generate(**INPUTS, decoder_input_ids=with_start)
    assert torch.equal(model.generate(**INPUTS, decoder_input_ids=with_start[:, 1:]), expected)


def test_assisted_decoding_gives_what_greedy_search_gives(model):
    expected = model.generate(input_ids=SOURCE[:1], num_beams=1)
    for assistant in (model, few_words(9)):
        found = model.generate(input_ids=SOURCE[:1], num_beams=1, assistant_model=assistant)
        assert torch.equal(found, expected)
    assert torch.equal(model.generate(input_ids=SOURCE[:1], num_beams=1, prompt_lookup_num_tokens=2), expected)
