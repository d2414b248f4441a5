"""Several models that decode together: the mean of their distributions, at the cost of its members."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from small_models import SIZES
from transformers import pipeline

from vanilla_transformer import (
    RecurrentEncoderDecoderConfig,
    RecurrentEncoderDecoderForConditionalGeneration,
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.tokenizer import train_tokenizer
from vanilla_transformer.translation.ensemble import EnsembleForConditionalGeneration
from vanilla_transformer.translation.minimum_bayes_risk import by_minimum_bayes_risk

SEARCHES = [
    {"num_beams": 1},
    {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 1, "do_sample": True, "num_return_sequences": 2},
]


def transformer(seed, vocab_size=30, **settings):
    torch.manual_seed(seed)
    config = VanillaTransformerConfig(vocab_size=vocab_size, dropout=0.0, **{**SIZES, **settings})
    model = VanillaTransformerForConditionalGeneration(config)
    # Far from uniform, so that models differ.
    torch.nn.init.normal_(model.model.shared.weight, std=0.6)
    return model.eval()


def recurrent(seed, vocab_size=30, **settings):
    torch.manual_seed(seed)
    config = RecurrentEncoderDecoderConfig(
        vocab_size=vocab_size, d_model=16, num_layers=1, dropout=0.0, initializer_range=0.8, **settings
    )
    return RecurrentEncoderDecoderForConditionalGeneration(config).eval()


FAMILIES = {"transformer": transformer, "recurrent": recurrent}


@pytest.fixture
def source():
    """More sentences than a search keeps in Python, of which some are padded."""
    torch.manual_seed(1)
    mask = torch.arange(7) < torch.tensor([7, 5, 3, 7, 6, 2, 7, 4, 5, 6])[:, None]
    ids = torch.randint(3, 30, mask.shape).masked_fill(~mask, 0)
    return {"input_ids": ids, "attention_mask": mask.long()}


def searched(model, source, search, sentences=10):
    torch.manual_seed(7)
    inputs = {name: part[:sentences] for name, part in source.items()}
    whole = search.get("num_beams") != 1 and not search.get("do_sample")
    returned = {"return_dict_in_generate": whole, "output_scores": whole}
    found = model.generate(**inputs, **returned, max_length_beyond_source=3, **search)
    return (found.sequences, found.sequences_scores) if whole else (found, None)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_ensemble_of_one_is_the_model_alone(family, search, source):
    model = FAMILIES[family](0)
    together = searched(EnsembleForConditionalGeneration([model]), source, search)
    for mine, alone in zip(together, searched(model, source, search), strict=True):
        if mine is not None or alone is not None:
            torch.testing.assert_close(mine, alone)


OPTIONS = {
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "sampled beam": {"do_sample": True, "num_beams": 3},
    "processors": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "renormalize_logits": True},
    "logits": {"output_logits": True, "output_scores": True, "return_dict_in_generate": True},
    "prompt": {"decoder_input_ids": torch.tensor([[1, 5, 6]]).repeat(10, 1)},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("beams", [1, 4])
def test_options_of_generate_are_those_of_a_single_model(option, beams, source):
    """The mean of equal members is each of them."""
    call = {"num_beams": beams, **OPTIONS[option]}
    if beams == 1:
        call.pop("repetition_penalty", None)  # Without a beam it changes logits, which an ensemble normalizes.
    for family in FAMILIES.values():
        found = []
        for model in (EnsembleForConditionalGeneration([family(0), family(0)]), family(0)):
            torch.manual_seed(7)
            output = model.generate(**source, **call)
            found.append(output if isinstance(output, torch.Tensor) else output.sequences)
        assert torch.equal(*found)


def test_assisted_decoding_gives_what_greedy_search_gives(source):
    ensemble = EnsembleForConditionalGeneration([transformer(0), transformer(2, d_model=32)])
    first = {name: part[:1] for name, part in source.items()}
    expected = ensemble.generate(**first, num_beams=1)
    for asked in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": transformer(2)}):
        assert torch.equal(ensemble.generate(**first, num_beams=1, **asked), expected)


def test_encoder_outputs_are_those_of_the_ensemble(source):
    ensemble = EnsembleForConditionalGeneration([transformer(0), recurrent(1)])
    encoded, mask = ensemble.get_encoder()(**source), source["attention_mask"]
    found = ensemble.generate(encoder_outputs=encoded, attention_mask=mask)
    assert torch.equal(found, ensemble.generate(**source))
    of_one = ensemble.members[0].get_encoder()(**source)
    for wrong in (of_one, of_one.to_tuple()):
        with refused(ValueError, "get_encoder()"):
            ensemble.generate(encoder_outputs=wrong, attention_mask=mask)
    with refused(ValueError, "attention", "members"):
        ensemble.generate(**source, output_attentions=True, return_dict_in_generate=True)


def mean_by_hand(models, source, read):
    """Log-probabilities of the next token after `read`, (rows, vocabulary), in NumPy and float64."""
    logits = [model(**source, decoder_input_ids=read).logits[:, -1].detach().double().numpy() for model in models]
    logs = np.stack([part - np.logaddexp.reduce(part, -1, keepdims=True) for part in logits])
    return np.log(np.exp(logs).mean(0))


def test_scores_of_a_beam_are_those_of_the_mean_recomputed_with_the_whole_target(source):
    ensemble = EnsembleForConditionalGeneration([transformer(0), recurrent(1), transformer(2, d_model=32)])
    sequences, scores = searched(ensemble, source, {"num_beams": 3, "num_return_sequences": 3})
    every, written = {name: part.repeat_interleave(3, 0) for name, part in source.items()}, sequences[:, 1:]
    log_p = ensemble(**every, decoder_input_ids=sequences[:, :-1]).logits.gather(-1, written[..., None])[..., 0]
    # A hypothesis is over after its end, and at the limit of its sentence.
    over = ((written == 2).cumsum(1) - (written == 2).long()).bool()
    over |= torch.arange(written.shape[1]) >= every["attention_mask"].sum(1, keepdim=True) + 3
    assert not written[over].any() and not torch.equal(sequences[::3], sequences[1::3])
    penalty = ((5 + (~over).sum(1)) / 6) ** 0.6
    torch.testing.assert_close(scores, log_p.masked_fill(over, 0).sum(1) / penalty, atol=1e-5, rtol=0)


def test_greedy_takes_the_likeliest_by_the_mean_and_forward_gives_it(source):
    models = [recurrent(3), transformer(4)]
    ensemble = EnsembleForConditionalGeneration(models)
    sequences, _ = searched(ensemble, source, {"num_beams": 1})
    read = sequences[:, :1]
    for place in range(1, 4):
        log_p = mean_by_hand(models, source, read)
        torch.testing.assert_close(
            ensemble(**source, decoder_input_ids=read).logits[:, -1].double(),
            torch.tensor(log_p),
            atol=1e-5,
            rtol=1e-5,
        )
        expected = torch.tensor(log_p.argmax(-1))
        over = (sequences[:, :place] == 2).any(1)
        assert torch.equal(sequences[~over, place], expected[~over])
        read = sequences[:, : place + 1]


@pytest.mark.parametrize(
    ("models", "named"),
    [
        ([transformer(0), transformer(1, 31)], "1 2 vocab_size 30 31"),
        ([transformer(0), recurrent(1, eos_token_id=3)], "eos_token_id 2 3"),
        ([EnsembleForConditionalGeneration([transformer(0)])], "member"),
    ],
)
def test_models_that_cannot_form_an_ensemble_are_refused(models, named):
    with refused(ValueError, *named.split()):
        EnsembleForConditionalGeneration(models)


def test_pipeline_translates_with_an_ensemble():
    tokenizer = train_tokenizer(["a b"], vocab_size=260)
    models = [transformer(0, 260), transformer(1, 260)]
    translate = pipeline("translation", model=EnsembleForConditionalGeneration(models), tokenizer=tokenizer)
    lines = ["a b", "b", ""]
    texts = [record["translation_text"] for record in translate(lines)]
    expected = Translator(EnsembleForConditionalGeneration(models), tokenizer)(lines)
    assert texts == [translation.text for translation in expected] and texts[2] == ""
    for model in models:
        alone = pipeline("translation", model=model, tokenizer=tokenizer)(lines)
        assert texts != [record["translation_text"] for record in alone]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(["a b"], vocab_size=260)
    for name, model in (("one", transformer(0, 260)), ("two", recurrent(1, 260)), ("three", transformer(2, 261))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    train_tokenizer(["ab ab"], vocab_size=261).save_pretrained(folder / "three")
    transformer(2, 260).save_pretrained(folder / "split")
    unlike = train_tokenizer(["a b"], vocab_size=260)
    unlike.backend_tokenizer.normalizer = None
    unlike.save_pretrained(folder / "split")
    (folder / "in").write_text("a b\n\nb\na a b\n")
    (folder / "out").write_text("a\nb\nb\na\n")
    return folder


@pytest.fixture
def run(directories, monkeypatch, run_command):
    monkeypatch.chdir(directories)
    return run_command


FLOAT32 = ("--precision", "float32")


def test_translate_and_evaluate_take_several_models(run, directories, tmp_path):
    models = [load_model(name)[0] for name in ("one", "two")]
    tokenizer = load_model("one")[1]
    lines = (directories / "in").read_text().splitlines()
    expected = [one.text for one in Translator(EnsembleForConditionalGeneration(models), tokenizer)(lines)]
    code, out, err = run("translate", "one", "two", "in", *FLOAT32)
    assert (code, out.splitlines()) == (0, expected), err
    code, out, err = run("evaluate", "one", "two", "--data", "in", "out", "--json", "--output", "found")
    assert json.loads(out)["model"] == ["one", "two"]
    assert Path("found").read_text().splitlines() == expected


def test_minimum_bayes_risk_chooses_among_the_beam(run, directories):
    model, tokenizer = load_model("one")
    lines = (directories / "in").read_text().splitlines()
    found = list(Translator(model, tokenizer, num_return_sequences=6, num_beams=6)(lines))
    expected = [[one.text for one in by_minimum_bayes_risk(each, "bleu").hypotheses[:2]] for each in found]
    assert any(texts[0] != translation.text for texts, translation in zip(expected, found, strict=True))
    options = ["--num-beams", 6, "--mbr", "bleu", *FLOAT32]
    code, out, err = run("translate", "one", "in", *options)
    assert (code, out.splitlines()) == (0, [texts[0] for texts in expected]), err
    code, out, err = run("translate", "one", "in", *options, "--nbest", 2)
    assert [line.split(" ||| ")[1] for line in out.splitlines()] == [text for texts in expected for text in texts]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("translate one three in", "one and three have different tokenizers"),
        ("translate one split in", "one and split have different tokenizers"),
        ("translate one two in --precision int8", "8-bit quantization cannot be combined with"),
    ],
)
def test_impossible_options_are_refused_in_one_sentence(run, words, message):
    code, out, err = run(*words.split())
    assert code in (1, 2) and message in err and len(err.splitlines()) == 1, err
