"""`pipeline("translation")` as before transformers 5: every kind of input, and the settings of `generate`."""

from pathlib import Path

import pytest
from datasets import Dataset
from small_models import save_translator
from transformers import pipeline
from transformers.pipelines.pt_utils import KeyDataset

from vanilla_transformer import VanillaTransformerTranslationPipeline

TEXTS = ["the cat", "a much longer text about the cat on the mat", "mat?"]


@pytest.fixture(scope="module")
def translate(tmp_path_factory: pytest.TempPathFactory) -> VanillaTransformerTranslationPipeline:
    directory = save_translator(tmp_path_factory.mktemp("model"), d_model=32)
    return pipeline("translation", model=directory, device="cpu", max_new_tokens=6)


def test_every_kind_of_input_gives_the_same_translations(translate):
    one_by_one, dataset = [translate(text) for text in TEXTS], Dataset.from_dict({"en": TEXTS})
    flat = [records[0] for records in one_by_one]
    for texts in (TEXTS, tuple(TEXTS), dataset["en"]):
        assert translate(texts, batch_size=2) == flat
    for texts in ((text for text in TEXTS), KeyDataset(dataset, "en")):
        assert list(translate(texts, batch_size=2)) == one_by_one


def test_arguments_of_generate_count_at_the_call_and_before(translate):
    model, tokenizer = translate.model, translate.tokenizer
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5}
    before = pipeline("translation", model=model, tokenizer=tokenizer, **settings)
    sequences = model.generate(**tokenizer("the cat", return_tensors="pt"), **settings)
    lines = tokenizer.batch_decode(sequences, skip_special_tokens=True)
    expected = [{"translation_text": line} for line in lines]
    assert before("the cat") == translate("the cat", **settings) == expected
    assert before("the cat", num_return_sequences=1) == expected[:1]
    assert before(["the cat", ""], batch_size=2) == [expected, [{"translation_text": ""}] * 2]


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
