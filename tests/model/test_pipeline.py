"""`pipeline("translation")` as before transformers 5: every kind of input, and the settings of `generate`."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from small_models import save_translator
from transformers import pipeline
from transformers.pipelines.pt_utils import KeyDataset

from vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    VanillaTransformerTranslationPipeline,
)

TEXTS = ["the cat", "a much longer text about the cat on the mat", "mat?"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_translator(tmp_path_factory.mktemp("model"), d_model=32)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def model(directory: Path) -> VanillaTransformerForConditionalGeneration:
    return VanillaTransformerForConditionalGeneration.from_pretrained(directory)


@pytest.fixture(scope="module")
def translate(directory: Path) -> VanillaTransformerTranslationPipeline:
    return pipeline("translation", model=directory, device="cpu", max_new_tokens=6)


def expected(model: Any, tokenizer: Any, text: str, **settings: int) -> list[dict[str, str]]:
    sequences = model.generate(**tokenizer(text, return_tensors="pt"), **settings)
    return [{"translation_text": line} for line in tokenizer.batch_decode(sequences, skip_special_tokens=True)]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_every_kind_of_input_gives_the_same_translations(translate, batch_size: int):
    one_by_one = [translate(text) for text in TEXTS]
    flat = [records[0] for records in one_by_one]
    dataset = Dataset.from_dict({"en": TEXTS})
    assert translate(TEXTS, batch_size=batch_size) == flat
    assert translate(tuple(TEXTS), batch_size=batch_size) == flat
    assert translate(dataset["en"], batch_size=batch_size) == flat
    assert list(translate((text for text in TEXTS), batch_size=batch_size)) == one_by_one
    assert list(translate(KeyDataset(dataset, "en"), batch_size=batch_size)) == one_by_one


def test_arguments_of_generate_count_at_the_call_and_before(model, tokenizer):
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5}
    before = pipeline("translation", model=model, tokenizer=tokenizer, **settings)
    result = before("the cat")
    assert len(result) == 2
    assert result == expected(model, tokenizer, "the cat", **settings)
    assert pipeline("translation", model=model, tokenizer=tokenizer)("the cat", **settings) == result
    assert before("the cat", num_return_sequences=1) == result[:1]
    assert before(["the cat", ""], batch_size=2) == [result, [{"translation_text": ""}] * 2]


def test_empty_texts_give_empty_translations(translate):
    assert translate("") == translate(" \n") == [{"translation_text": ""}]
    assert translate(["", "the cat", "\t"], batch_size=3) == [
        {"translation_text": ""},
        *translate("the cat"),
        {"translation_text": ""},
    ]
    assert translate([]) == []


def test_a_saved_pipeline_loads_as_the_packages_own_without_a_question(translate, tmp_path: Path):
    translate.save_pretrained(tmp_path)
    for trust in (None, True):
        loaded = pipeline("translation", model=str(tmp_path), trust_remote_code=trust, max_new_tokens=6)
        assert type(loaded) is VanillaTransformerTranslationPipeline
        assert loaded(TEXTS) == translate(TEXTS)
    config = json.loads((tmp_path / "config.json").read_text())
    assert set(config["custom_pipelines"]) == {"translation", "text2text-generation"}
    assert (tmp_path / "pipeline_vanilla_transformer.py").is_file()
