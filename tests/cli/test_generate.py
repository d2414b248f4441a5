"""`vanilla-transformer generate`: text that goes on."""

import json

import pytest
import torch
from small_models import random_model, save

from vanilla_transformer import VanillaTransformerDecoderForCausalLM, VanillaTransformerTokenizer
from vanilla_transformer.cli.generate import continue_text
from vanilla_transformer.tokenizer import train_tokenizer

GREEDY = {"do_sample": False}
DRAWN = {"do_sample": True, "top_k": 0}


@pytest.fixture(scope="module", params=["sinusoidal", "learned"])
def model(request, tmp_path_factory):
    """The directory of a language model of random weights, whose blocks have 12 tokens."""
    fields = {"max_position_embeddings": 12, "positional_encoding": request.param}
    tokenizer = train_tokenizer(["to be or not"], 262, begins=True, ends=False)
    return save(random_model("language-model", vocab_size=262, **fields), tokenizer, tmp_path_factory.mktemp("lm"))


@pytest.fixture
def run(run_command):
    return lambda *words, stdin="to be\n": run_command(*words, "--precision", "float32", stdin=stdin.encode())


def loaded(directory):
    model = VanillaTransformerDecoderForCausalLM.from_pretrained(directory).eval()
    return model, VanillaTransformerTokenizer.from_pretrained(directory)


def test_a_prompt_goes_on_as_the_library_writes_it(model, run):
    network, tokenizer = loaded(model)
    inputs = tokenizer("to be", return_tensors="pt")
    ids = network.generate(**inputs, max_new_tokens=4, do_sample=False)
    expected = tokenizer.decode(ids[0], skip_special_tokens=True)
    assert run("generate", model, "--max-new-tokens", "4")[:2] == (0, f"{expected}\n")


@pytest.mark.parametrize("search", [GREEDY, DRAWN])
def test_streamed_pieces_join_to_the_text_beyond_a_block_too(model, search):
    shown, (network, tokenizer) = [], loaded(model)
    network.generation_config.return_dict_in_generate = True
    torch.manual_seed(3)
    text, tokens = continue_text(network, tokenizer, "to be or", 40, search, shown.append)
    assert "".join(shown) == text and 0 < tokens <= 40


def test_each_of_several_ends_ends_a_text(model):
    network, tokenizer = loaded(model)
    inputs = tokenizer("to be", return_tensors="pt")
    end = int(network.generate(**inputs, max_new_tokens=1, do_sample=False)[0, -1])
    network.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    assert continue_text(network, tokenizer, "to be", 40, GREEDY, lambda text: None)[1] == 1


def test_a_seed_draws_the_same_text_again_and_another_one_another(model, run):
    words = "generate", model, "--max-new-tokens", "10", "--top-p", "0.9"
    first = run(*words)
    assert run(*words) == run(*words, "--seed", "1") == first
    assert run(*words, "--seed", "2") != first


def test_json_gives_each_prompt_an_object_and_an_empty_one_begins_a_text(model, run):
    code, out, _ = run("generate", model, "--json", "--max-new-tokens", "5", stdin="to\n\n")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [one["prompt"] for one in found] == ["to", ""]
    assert all(1 <= one["tokens"] <= 5 for one in found)
