"""The meaning of a call of `generate`, compared with the library's search on the same model."""

import copy

import pytest
import torch
from searches import END, INPUTS, PAD, START, Google, LibrarySearch, sharp
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StoppingCriteriaList,
    default_data_collator,
)

from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.model.generation_vanilla_transformer import paper_generation_config

# Types that the model of these tests writes early.
ENDS = list(range(50, 71))


@pytest.fixture(scope="module")
def model() -> VanillaTransformerForConditionalGeneration:
    return sharp(0)


def scores(model, **asked) -> torch.Tensor:
    return model.generate(**INPUTS, **asked, output_scores=True, return_dict_in_generate=True).sequences_scores


def until_end(found, ends: tuple[int, ...] = (END,)) -> list[list[int]]:
    """Each row up to the first token that ends it."""
    rows = found.tolist() if isinstance(found, torch.Tensor) else found.sequences.tolist()
    lengths = [next((place + 1 for place, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


CRITERIA = {
    "a length": [MaxLengthCriteria(4)],
    "no length at all": [MaxLengthCriteria(1)],
    "the shorter of two lengths": [MaxLengthCriteria(9), MaxLengthCriteria(5)],
    "ends": [EosTokenCriteria(ENDS)],
    "ends beside those of the settings": [EosTokenCriteria([END]), EosTokenCriteria(torch.tensor(ENDS))],
    "an end instead of that of the settings": [EosTokenCriteria(21)],
    "a length and ends": [MaxLengthCriteria(6), EosTokenCriteria(ENDS)],
}


@pytest.mark.parametrize("criteria", CRITERIA.values(), ids=CRITERIA)
@pytest.mark.parametrize("beams", [1, 4])
def test_criteria_of_the_caller_end_what_they_end_in_the_librarys_search(model, ways_taken, criteria, beams):
    asked = {"max_new_tokens": 12, "num_beams": beams, "return_dict_in_generate": True, "output_scores": False}
    criteria = StoppingCriteriaList(criteria)
    ours = model.generate(**INPUTS, **asked, stopping_criteria=criteria)
    assert ways_taken == ["engine"]
    asked |= {"output_scores": True, "length_penalty": Google(0.6)} if beams > 1 else {}
    theirs = sharp(0, LibrarySearch).generate(**INPUTS, **asked, stopping_criteria=criteria)
    ends = (
        END,
        *(int(token) for part in criteria if isinstance(part, EosTokenCriteria) for token in part.eos_token_id),
    )
    assert until_end(ours, ends) == until_end(theirs, ends)
    if beams > 1:
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("way", [{}, {"do_sample": True}], ids=["engine", "the library's"])
def test_a_longer_length_of_the_caller_counts(model, beams, way):
    asked = {"num_beams": beams, "suppress_tokens": [END], **way}
    torch.manual_seed(0)
    found = model.generate(**INPUTS, **asked, max_new_tokens=3, stopping_criteria=[MaxLengthCriteria(9)])
    torch.manual_seed(0)
    assert found.shape[1] == 9 and torch.equal(found, model.generate(**INPUTS, **asked, max_length=9))


def test_static_cache_with_room_for_the_output_is_accepted(model):
    asked = {"num_beams": 2, "max_new_tokens": 3, "forced_eos_token_id": END}
    dynamic, static = (
        model.generate(**INPUTS, **asked, **cache, stopping_criteria=[MaxLengthCriteria(9)])
        for cache in ({}, {"cache_implementation": "static"})
    )
    assert torch.equal(dynamic, static) and dynamic.shape[1] == 4


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


REQUESTS = [
    {"num_beams": 5},
    {"num_beams": 5, "length_penalty": 1.3},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 2, "max_length_beyond_source": 2},
    {"num_beams": 4, "max_new_tokens": 4},
    {"num_beams": 4, "max_length": 7},
    {"num_beams": 4, "max_length": 20},
    {"max_length": 20, "max_length_beyond_source": 4},
    {"max_new_tokens": 5, "max_length_beyond_source": 4},
    {"num_beams": 4, "length_penalty_type": "huggingface"},
    {"num_beams": 4, "length_penalty_type": "huggingface", "length_penalty": 1.0, "early_stopping": False},
    {"length_penalty": 0.0},
    {"max_length_beyond_source": 0},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
@pytest.mark.parametrize("own", ["the paper's", "greedy search", "another length"])
def test_argument_and_generation_config_mean_the_same(model, request_: dict, own: str):
    model = copy.deepcopy(model)
    if own == "greedy search":
        model.generation_config = paper_generation_config(model.config, num_beams=1)
    elif own == "another length":
        model.generation_config.max_new_tokens = 6
    asked = {"output_scores": True, "return_dict_in_generate": True}
    by_keyword = model.generate(**INPUTS, **request_, **asked)
    by_object = model.generate(**INPUTS, generation_config=GenerationConfig(**request_, **asked))
    assert torch.equal(by_object.sequences, by_keyword.sequences)
    if "sequences_scores" in by_keyword:
        assert torch.equal(by_object.sequences_scores, by_keyword.sequences_scores)


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


def test_lengths_written_by_a_trainer_mean_the_papers_limit(model):
    polluted = copy.deepcopy(model.generation_config)
    polluted.update(**polluted._get_default_generation_params(), defaults_only=True)
    assert polluted.max_length == 20
    never_ends = {"suppress_tokens": [END, PAD]}
    assert model.generate(**INPUTS, generation_config=polluted, **never_ends).shape[1] == 1 + 5 + 50
    assert model.generate(**INPUTS, generation_config=GenerationConfig(max_length=20), **never_ends).shape[1] == 20


def test_a_limit_of_the_call_takes_the_place_of_the_models_own_length(model):
    own = copy.deepcopy(model)
    never_ends = {"suppress_tokens": [END, PAD]}
    for name, length in (("max_new_tokens", 3), ("max_length", 4)):
        own.generation_config = copy.deepcopy(model.generation_config)
        setattr(own.generation_config, name, length)
        assert own.generate(**INPUTS, **never_ends).shape[1] == 4
        assert own.generate(**INPUTS, **never_ends, max_length_beyond_source=1).shape[1] == 1 + 5 + 1


def test_saying_not_to_sample_keeps_the_beam(model):
    beam = model.generate(**INPUTS)
    assert not torch.equal(model.generate(**INPUTS, num_beams=1), beam)
    assert torch.equal(model.generate(**INPUTS, do_sample=False), beam)
    assert torch.equal(model.generate(**INPUTS, generation_config=GenerationConfig(do_sample=False)), beam)


def test_sampling_without_a_beam_is_what_do_sample_alone_asks_for(model):
    found = []
    for asked in ({"do_sample": True}, {"do_sample": True, "num_beams": 1}):
        torch.manual_seed(3)
        found.append(model.generate(**INPUTS, **asked))
    assert torch.equal(*found)


def test_a_model_that_was_set_to_greedy_search_is_saved(model, tmp_path):
    greedy = copy.deepcopy(model)
    greedy.generation_config.num_beams = 1
    pair = {"input_ids": [5, 9, END], "attention_mask": [1, 1, 1], "labels": [6, 3, END]}
    trainer = Seq2SeqTrainer(
        model=greedy,
        args=Seq2SeqTrainingArguments(tmp_path, max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True),
        train_dataset=[pair] * 4,
        data_collator=default_data_collator,
    )
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    chosen = greedy.generation_config
    assert (chosen.num_beams, chosen.length_penalty, chosen.early_stopping) == (1, 0.6, "never")
    for directory in (tmp_path / "checkpoint-1", tmp_path / "saved"):
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(directory)
        assert loaded.generation_config.num_beams == 1
        assert torch.equal(loaded.generate(**INPUTS), greedy.eval().generate(**INPUTS))
        assert torch.equal(scores(loaded, num_beams=4), scores(greedy, num_beams=4))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_prediction_in_a_trainer_takes_the_fast_path(ways_taken, tmp_path, quantization):
    model = sharp(0, d_model=64)
    model.generation_config.quantization = quantization
    pair = {"input_ids": [5, 9, 7, END], "attention_mask": [1, 1, 1, 1], "labels": [6, 3, END]}
    arguments = {"predict_with_generate": True, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    trainer = Seq2SeqTrainer(
        model=model, args=Seq2SeqTrainingArguments(tmp_path, **arguments), data_collator=default_data_collator
    )
    found = trainer.predict([pair, pair]).predictions
    assert ways_taken == ["engine"]
    expected = model.generate(torch.tensor([pair["input_ids"]]), attention_mask=torch.ones(1, 4))[0]
    assert found[0][: len(expected)].tolist() == expected.tolist()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("beams", [1, 3])
def test_source_of_padding_alone_decodes_as_in_the_library(implementation: str, beams: int):
    source = torch.tensor([[5, 9, 7, END], [PAD] * 4, [8, END, PAD, PAD]])
    asked = {"num_beams": beams, "max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    found = []
    for model, penalty in ((sharp(0), 0.6), (sharp(0, LibrarySearch), Google(0.6))):
        model.set_attn_implementation(implementation)
        asked |= {"length_penalty": penalty} if beams > 1 else {}
        asked["output_scores"] = beams > 1 and isinstance(penalty, Google)
        found.append(model.generate(source, attention_mask=(source != PAD).long(), **asked))
    ours, theirs = found
    assert until_end(ours) == until_end(theirs)
    if beams > 1 and ours.sequences_scores is not None:
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 4}])
@pytest.mark.parametrize("fields", [{}, {"positional_encoding": "learned", "max_position_embeddings": 64}])
def test_a_prompt_padded_on_the_left_is_the_same_with_a_static_cache(search: dict, fields: dict):
    model = sharp(0, **fields)
    prompts = torch.tensor([[PAD, PAD, START, 9], [START, 6, 7, 8], [PAD, START, 5, 5]])
    asked = {
        **INPUTS,
        **search,
        "decoder_input_ids": prompts,
        "decoder_attention_mask": (prompts != PAD).long(),
        "max_new_tokens": 6,
        "suppress_tokens": [END],
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    dynamic = model.generate(**asked)
    static = model.generate(**asked, cache_implementation="static")
    assert torch.equal(static.sequences, dynamic.sequences)
    for ours, theirs in zip(static.scores, dynamic.scores, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for row, prompt in enumerate(prompts):
        alone = {**asked, "input_ids": INPUTS["input_ids"][row : row + 1]}
        alone["attention_mask"] = INPUTS["attention_mask"][row : row + 1]
        alone |= {"decoder_input_ids": prompt[prompt != PAD][None], "decoder_attention_mask": None}
        expected = model.generate(**alone).sequences[0, -6:]
        assert torch.equal(static.sequences[row, -6:], expected)


@pytest.mark.parametrize("path", ["engine", "library"])
@pytest.mark.parametrize("beams", [1, 4])
def test_rows_that_have_ended_are_filled_with_the_padding_asked_for(model, path: str, beams: int):
    asked = {"num_beams": beams, "max_length_beyond_source": 1, "suppress_tokens": [END], "pad_token_id": 77}
    if path == "library":
        asked |= {"output_scores": True, "return_dict_in_generate": True}
    found = model.generate(**INPUTS, **asked)
    rows = (found if path == "engine" else found.sequences).tolist()
    for row, length in zip(rows, INPUTS["attention_mask"].sum(1).tolist(), strict=True):
        written = 1 + length + 1
        assert set(row[written:]) <= {77} and PAD not in row
    assert rows[2][-1] == 77


@pytest.mark.parametrize("path", ["engine", "library"])
@pytest.mark.parametrize("start", [9, [9, 9, 9]])
def test_prompt_with_the_start_token_gets_no_second_one(model, path: str, start):
    asked = {"decoder_start_token_id": start, "suppress_tokens": [END, PAD], "max_length_beyond_source": 2}
    if path == "library":
        asked |= {"output_scores": True, "return_dict_in_generate": True}
    prompts = torch.tensor([[9, 8]]).expand(3, -1)
    found = model.generate(**INPUTS, **asked, decoder_input_ids=prompts)
    sequences = found if path == "engine" else found.sequences
    assert torch.equal(sequences[:, :2], prompts)
    assert (sequences != PAD).sum(1).tolist() == [2 + 5 + 2, 2 + 3 + 2, 2 + 2 + 2]


@pytest.mark.parametrize("asked", [{"num_beams": 1}, {"num_beams": 4}, {"do_sample": True}], ids=str)
def test_rows_of_a_model_without_an_end_stop_at_their_own_limit(asked: dict):
    model = sharp(0)
    model.generation_config.eos_token_id = None
    found = model.generate(**INPUTS, **asked, max_length_beyond_source=2, suppress_tokens=[PAD])
    assert (found != PAD).sum(1).tolist() == [1 + 5 + 2, 1 + 3 + 2, 1 + 2 + 2]


def test_criteria_may_stand_in_their_place(model):
    criteria = StoppingCriteriaList([MaxLengthCriteria(5)])
    by_name = model.generate(**INPUTS, stopping_criteria=criteria)
    assert torch.equal(
        model.generate(INPUTS["input_ids"], None, None, criteria, attention_mask=INPUTS["attention_mask"]), by_name
    )


@pytest.mark.parametrize("asked", [{}, {"num_beams": 1}, {"output_scores": True, "return_dict_in_generate": True}])
def test_a_model_without_a_padding_token_decodes(asked: dict):
    source = INPUTS["input_ids"][:1]
    expected = sharp(0).generate(source, **asked)
    found = sharp(0, pad_token_id=None).generate(source, **asked)
    assert until_end(found) == until_end(expected)
