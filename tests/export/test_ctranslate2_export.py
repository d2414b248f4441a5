"""CTranslate2 gives the translations that the model gives, without either's length penalty."""

from pathlib import Path

import ctranslate2
import pytest
from tokenizers import Tokenizer

from vanilla_transformer.cli import main
from vanilla_transformer.translation import load_model


@pytest.fixture(scope="module", params=["float32", "int8"])
def exported(request, spelled_backwards: Path, tmp_path_factory) -> tuple[str, Path]:
    output = tmp_path_factory.mktemp("ctranslate2") / request.param
    words = ["export", str(spelled_backwards), str(output), "--to", "ctranslate2"]
    assert main([*words, "--quantization", request.param]) == 0
    return request.param, output


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


def test_int8_is_a_quarter_of_the_size(spelled_backwards: Path, tmp_path: Path):
    sizes = {}
    for quantization in ("float32", "int8"):
        output = tmp_path / quantization
        main(["export", str(spelled_backwards), str(output), "--to", "ctranslate2", "--quantization", quantization])
        positions = 2048 * 32 * 4
        sizes[quantization] = (output / "model.bin").stat().st_size - positions
    assert sizes["int8"] < 0.4 * sizes["float32"]


def test_readme_says_how_to_run_it(exported, monkeypatch, capsys):
    _, directory = exported
    code = (directory / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert "max_input_length=2048, max_decoding_length=2048" in code
    monkeypatch.chdir(directory)
    exec(code, {})
    assert capsys.readouterr().out.strip()
