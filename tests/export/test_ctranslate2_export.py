"""CTranslate2 gives the translations that the model gives, without either's length penalty."""

import re
from pathlib import Path

import ctranslate2
import pytest
import torch
from guide_clients import guide_client, run_client
from refusals import refused
from searches import CHANGED
from tokenizers import Tokenizer

from vanilla_transformer import Translator
from vanilla_transformer.cli import main
from vanilla_transformer.errors import ModelError
from vanilla_transformer.export import to_ctranslate2
from vanilla_transformer.loading.models import load_model


@pytest.fixture(scope="module", params=["float32", "int8"])
def exported(request, spelled_backwards: Path, tmp_path_factory) -> tuple[str, Path]:
    output = tmp_path_factory.mktemp("ctranslate2") / request.param
    words = ["export", str(spelled_backwards), str(output), "--to", "ctranslate2"]
    assert main([*words, "--quantization", request.param]) == 0
    return request.param, output


@pytest.mark.processor
@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_models(exported, spelled_backwards: Path, words: list[str], beam: int):
    quantization, directory = exported
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    inputs = tokenizer(words, return_tensors="pt", padding=True)
    output = model.generate(
        **inputs, num_beams=beam, max_new_tokens=30, length_penalty=0.0, length_penalty_type="huggingface"
    )
    expected = tokenizer.batch_decode(output, skip_special_tokens=True)
    # The tokenizer that lies beside the export, as its README says.
    alone = Tokenizer.from_file(str(directory / "tokenizer.json"))
    translator = ctranslate2.Translator(str(directory), intra_threads=1)
    results = translator.translate_batch(
        [alone.encode(word).tokens for word in words], beam_size=beam, length_penalty=0, max_decoding_length=30
    )
    actual = [alone.decode([alone.token_to_id(t) for t in result.hypotheses[0]]) for result in results]
    assert len(set(expected)) > 20
    same = sum(a == b for a, b in zip(actual, expected, strict=True))
    assert same == len(words) if quantization == "float32" else same >= 0.8 * len(words)


def test_ten_lines_of_python_translate(spelled_backwards: Path, tmp_path: Path, words: list[str], capsys):
    command = ["export", str(spelled_backwards), str(tmp_path), "--to", "ctranslate2"]
    assert main(command) == 0 and main(command) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    client = guide_client("ctranslate2", tmp_path / "README.md")
    for changes in ({"A dog runs.": words[0]}, {"length_penalty=0.6": "length_penalty=0"}):
        for old, new in changes.items():
            assert old in client
            client = client.replace(old, new)
    search = {"num_beams": 4, "length_penalty": 0.0, "length_penalty_type": "huggingface"}
    (expected,) = Translator(model, tokenizer, **search)([words[0]])
    assert run_client(client, tmp_path) == f"{expected.text}\n"
    model.config.eos_token_id = model.generation_config.eos_token_id = [2, 7]
    with refused(ModelError, "</s>", "eos_token_id"):
        to_ctranslate2.export_ctranslate2(model, tokenizer, tmp_path / "other")
    with refused(ModelError, tmp_path, "empty"):
        to_ctranslate2.export_ctranslate2(model, tokenizer, tmp_path)
    tokenizer.add_tokens("another")
    with refused(ModelError, "do not match"):
        to_ctranslate2.export_ctranslate2(model, tokenizer, tmp_path / "other")


def test_8_bits_are_of_7_and_the_model_stays_as_it_is(spelled_backwards: Path):
    """255 · 64 twice is less than 2^15: on no processor is a sum of two products too large for 16 bits."""
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    spec = to_ctranslate2._specification(model)
    spec.register_source_vocabulary([str(number) for number in range(model.config.vocab_size)])
    spec.register_target_vocabulary([str(number) for number in range(model.config.vocab_size)])
    spec.validate()
    to_ctranslate2.optimize(spec, "int8")
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    variables = spec.variables()
    rounded = {name: variables[name] for name in variables if f"{name}_scale" in variables}
    rounded = {name: value.numpy() for name, value in rounded.items() if not isinstance(value, str)}
    assert len(rounded) > 8
    assert {int(abs(value.astype(int)).max()) for value in rounded.values()} == {64}


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {"length_penalty"}))  # Of which its README tells.
def test_every_setting_of_the_library_is_followed_or_refused(name, spelled_backwards, words, tmp_path):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    own = {"length_penalty_type": "huggingface", "length_penalty": 0.0, "renormalize_logits": True}
    model.generation_config.update(**own | {name: CHANGED[name]})
    try:
        to_ctranslate2.export_ctranslate2(model, tokenizer, tmp_path)
    except (ModelError, ValueError) as error:
        assert name in str(error) and not list(tmp_path.iterdir())
        return
    options = re.search(r"translate_batch\(\[tokens], (.*)\)", (tmp_path / "README.md").read_text()).group(1)
    sources = [tokenizer.convert_ids_to_tokens(tokenizer(word)["input_ids"]) for word in words]
    found = ctranslate2.Translator(str(tmp_path), intra_threads=1).translate_batch(sources, **eval(f"dict({options})"))
    texts = [tokenizer.decode(tokenizer.convert_tokens_to_ids(one.hypotheses[0])) for one in found]
    for other in ("num_return_sequences", "return_dict_in_generate"):
        setattr(model.generation_config, other, None)
    expected = model.generate(**tokenizer(words, return_tensors="pt", padding=True))
    assert texts == tokenizer.batch_decode(expected, skip_special_tokens=True)
