"""Answers to visitors: the model's own, limits in a sentence, and input as plain text."""

import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from refusals import refused

from vanilla_transformer import RecurrentEncoderDecoderConfig, RecurrentEncoderDecoderForConditionalGeneration
from vanilla_transformer.extras.demo.answers import DemoError
from vanilla_transformer.extras.demo.shown import ShownModel, card_examples
from vanilla_transformer.translation import load_model, translate_lines

DEFAULTS = (4, 0.6, 1)
MARKUP = 'A <b>dog</b> & "two" {{value}} ${1+1} <img src=x onerror=alert(1)> </iframe><script>alert(2)</script>'


class Reader(HTMLParser):
    """The text of a page, and the elements in it."""

    def __init__(self, html: str):
        super().__init__()
        self.text, self.elements, self.attributes = "", [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.text += data


def only(shown, text, values=DEFAULTS):
    (reply,) = shown.reply([(text, values)])
    return reply


def test_translations_and_scores_are_those_of_translate_lines(shown, translating):
    model, tokenizer = load_model(translating)
    lines = ["A dog runs.", "Two men wait."]
    settings = {"num_beams": 3, "length_penalty": 1.0, "num_return_sequences": 2, "scores": True}
    expected = list(translate_lines(model, tokenizer, lines, **settings))
    reply = only(shown, "A dog runs.\n\n  \nTwo men wait.", (3, 1.0, 2))
    assert [answer["source"] for answer in reply] == lines
    for answer, translation in zip(reply, expected, strict=True):
        assert [one["text"] for one in answer["translations"]] == [one.text for one in translation.hypotheses]
        scores = [one.score for one in translation.hypotheses]
        assert [one["score"] for one in answer["translations"]] == pytest.approx(scores, abs=1e-5)


def test_the_answer_to_one_is_the_same_among_many(shown):
    requests = [("A dog runs.", DEFAULTS), ("Two men\nwait", (2, 0.0, 2)), ("", DEFAULTS), ("the bus", DEFAULTS)]
    together = shown.reply(requests)
    for request, reply in zip(requests, together, strict=True):
        (alone,) = shown.reply([request])
        assert [[one["text"] for one in answer["translations"]] for answer in reply] == [
            [one["text"] for one in answer["translations"]] for answer in alone
        ]


def test_ten_at_once_from_threads_get_their_own_answers(shown):
    texts = [f"{word} runs in the park." for word in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]]
    alone = [shown.html(only(shown, text)) for text in texts]
    found = [""] * len(texts)

    def ask(place):
        if place % 3 == 0:  # Attention changes the model for a moment.
            shown.attention(texts[place], DEFAULTS)
        found[place] = shown.html(only(shown, texts[place]))

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


@pytest.mark.parametrize(
    ("text", "values", "sentence"),
    [
        ("a" * 201, DEFAULTS, "The text has 201 characters, but this page takes only 200: shorten it."),
        (None, DEFAULTS, "The text must be text."),
        ("half \ud83d", DEFAULTS, "The text must be text."),
        ("a", (11, 0.6, 1), "Beam size must be between 1 and 10, not 11."),
        ("a", (2.5, 0.6, 1), "Beam size must be a whole number, not '2.5'."),
        ("a", ("four", 0.6, 1), "Beam size must be a whole number, not 'four'."),
        ("a", (True, 0.6, 1), "Beam size must be a whole number, not 'True'."),
        ("a", (4, float("nan"), 1), "Length penalty must be between 0 and 2, not nan."),
        ("a", (float("inf"), 0.6, 1), "Beam size must be a whole number, not 'inf'."),
        ("a", (2, 0.6, 3), "A beam of 2 cannot give 3 translations: choose a beam size of 3 or more."),
    ],
)
def test_bad_request_is_explained_and_its_neighbour_answered(shown, text, values, sentence):
    refused, answered = shown.reply([(text, values), ("A dog.", DEFAULTS)])
    assert isinstance(refused, DemoError) and str(refused) == sentence
    assert answered[0]["source"] == "A dog."
    assert Reader(shown.html(refused)).text == sentence


def test_a_text_that_the_model_refuses_fails_alone(shown, answering):
    answers = shown.kind.answers

    def refusing(lines, settings):
        if "bad" in lines:
            raise ValueError("The model does not take this.")
        return answers(lines, settings)

    replies = answering(refusing).reply([("A dog.", DEFAULTS), ("bad", DEFAULTS), ("Two men.", DEFAULTS)])
    assert [isinstance(reply, DemoError) for reply in replies] == [False, True, False]
    assert str(replies[1]) == "The model does not take this."


def test_no_text_is_answered_with_a_hint(shown):
    for text in ("", "   ", "\n\n"):
        assert Reader(shown.html(only(shown, text))).text == "Type a text: each line is translated."
        assert "Type a text" in shown.attention(text, DEFAULTS)


def test_words_know_what_they_are_aligned_with(shown):
    (answer,) = only(shown, "A dog runs.", (4, 0.6, 2))
    read = Reader(shown.html([answer]))
    sources = [one["data-source"] for one in read.attributes if "data-source" in one]
    assert sources == ["0", "1", "2"]
    links = [one["data-from"].split() for one in read.attributes if "data-from" in one]
    for translation in answer["translations"]:
        found = [(number, target) for target, _ in enumerate(translation["text"].split()) for number in links.pop(0)]
        aligned = [link.split("-") for link in translation["alignment"].split()]
        assert sorted(found) == sorted((source, int(target)) for source, target in aligned)
    assert not links and found


def test_without_alignment_heads_the_page_says_so_and_shows_translations(without_heads):
    model = ShownModel.load(without_heads)
    assert "No alignment heads have been chosen" in model.kind.note
    reply = only(model, "A dog runs.")
    assert reply[0]["translations"][0]["alignment"] is None
    assert "data-source" not in model.html(reply)


@pytest.mark.parametrize("attention", ["bahdanau", "none"])
def test_recurrent_models_are_shown_with_what_they_have(attention, translating, tmp_path):
    _, tokenizer = load_model(translating)
    torch.manual_seed(0)
    config = RecurrentEncoderDecoderConfig(vocab_size=len(tokenizer), d_model=16, attention=attention)
    RecurrentEncoderDecoderForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = ShownModel.load(str(tmp_path))
    (answer,) = only(model, "A dog.", (2, 0.6, 2))
    assert len(answer["translations"]) == 2
    aligned, view = answer["translations"][0]["alignment"] is not None, model.attention("A dog.", (2, 0.6, 2))
    if attention == "none":
        assert not aligned and "no attention" in model.kind.note and "This model has no attention" in view
    else:
        assert aligned and Reader(view).elements == ["iframe"]


def test_greedy_search_has_no_score(shown):
    (answer,) = only(shown, "A dog.", (1, 0.6, 1))
    assert answer["translations"][0]["score"] is None
    assert "vt-score" not in shown.html([answer])


@pytest.mark.parametrize("kind", ["translate", "classify", "tag", "fill", "continue"])
def test_markup_in_a_text_is_shown_as_text(shown, one_stack, kind):
    model = shown if kind == "translate" else ShownModel.load(one_stack[kind])
    values = [one.default for one in model.kind.controls]
    text = MARKUP + (" <mask>" if kind == "fill" else "")
    html = model.html(only(model, text, values))
    read = Reader(html)
    assert {"b", "img", "script", "iframe"}.isdisjoint(read.elements)
    if kind in ("translate", "continue"):
        assert " ".join(text.split()) in " ".join(read.text.split())
    if kind == "tag":
        assert all(word in read.text for word in text.split())
    view = Reader(model.attention(text, values))
    assert view.elements == ["iframe"] and view.attributes[0]["sandbox"] == "allow-scripts"
    assert "<script>alert(2)" not in view.attributes[0]["srcdoc"]
    assert "<img" not in view.attributes[0]["srcdoc"]


def test_labels_are_text_too_and_their_shares_sum_to_one(one_stack):
    model = ShownModel.load(one_stack["classify"])
    (answer,) = only(model, "A dog runs.", ())
    assert set(answer["scores"]) == {"animal", "plant", "<b>stone</b>"} and sum(
        answer["scores"].values()
    ) == pytest.approx(1, abs=1e-4)
    read = Reader(model.html([answer]))
    assert "<b>stone</b>" in read.text and "b" not in read.elements


def test_masks_are_filled_by_the_likeliest_tokens(one_stack):
    shown = ShownModel.load(one_stack["fill"])
    model, tokenizer = load_model(one_stack["fill"], translates=False)
    (answer, none) = only(shown, "A <mask> runs <mask>.\nNone here.", (3,))
    inputs = tokenizer("A <mask> runs <mask>.", return_tensors="pt")
    shares = model(**inputs).logits[0].softmax(-1)
    places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
    for found, place in zip(answer["masks"], places, strict=True):
        best = shares[place].topk(3).values.tolist()
        assert [one["score"] for one in found] == pytest.approx(best, abs=1e-5)
    assert none["masks"] == []
    assert "Put <mask> where the model" in Reader(shown.html([none])).text


def test_a_text_goes_on_as_generate_does_and_has_its_log_probability(one_stack):
    shown = ShownModel.load(one_stack["continue"])
    model, tokenizer = load_model(one_stack["continue"], translates=False)
    (answer,) = only(shown, "A dog", (5, 0.0))
    ids = model.generate(**tokenizer("A dog", return_tensors="pt"), max_new_tokens=5, do_sample=False, num_beams=1)
    assert answer["source"] + answer["continuation"] == tokenizer.decode(ids[0], skip_special_tokens=True)
    ids = torch.tensor([[*tokenizer("A dog")["input_ids"], tokenizer.eos_token_id]])
    steps = model(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
    assert answer["log_probability"] == pytest.approx(steps.sum().item(), abs=1e-3)
    torch.manual_seed(0)
    assert only(shown, "A dog", (20, 1.5))[0]["continuation"] != only(shown, "A dog", (20, 1.5))[0]["continuation"]
    too_long = only(shown, "x" * 999, (5, 0.0))
    assert "tokens, but the model reads only 200: shorten it." in str(too_long)


def test_a_line_that_was_cut_is_said_to_be(shown):
    reply = only(shown, "A dog.")
    assert "was cut" not in shown.html(reply)
    assert "was too long for the model and was cut" in shown.html([reply[0] | {"truncated": True}])


def test_attention_of_a_text_too_long_is_refused_in_a_sentence(shown):
    patient = ShownModel(shown.name, shown.kind, max_characters=100_000)
    told = Reader(patient.attention("A dog runs in the park. " * 60, (1, 0.0, 1)))
    assert "is too long for this view: shorten it." in told.text and "iframe" not in told.elements


def test_the_attention_is_that_of_the_translation_that_is_shown(shown, monkeypatch):
    asked = []
    original = shown.attention.__func__.__globals__["attention"]

    def recording(model, tokenizer, source, target):
        asked.append((source, target))
        return original(model, tokenizer, source, target)

    monkeypatch.setattr("vanilla_transformer.extras.demo.shown.attention", recording)
    shown.attention("A dog runs.\nTwo men.", (2, 0.0, 1))
    reply = only(shown, "A dog runs.\nTwo men.", (2, 0.0, 1))
    assert asked == [(answer["source"], answer["translations"][0]["text"]) for answer in reply]


def test_examples_come_from_the_card(tmp_path: Path, shown):
    assert shown.examples == ["A dog runs."]
    card = tmp_path / "README.md"
    assert card_examples(str(tmp_path)) == []
    card.write_text("---\nlicense: mit\n---\n\n## Recipe\n\n```yaml\ntrain: x\nexamples: [one, two]\n```\n")
    assert card_examples(str(tmp_path)) == ["one", "two"]
    for damaged in ("---\nwidget: [\n---\n", "---\nwidget: 5\n---\n", "no head"):
        card.write_text(damaged)
        assert card_examples(str(tmp_path)) == []


def test_a_model_of_the_hub_is_shown_where_its_card_cannot_be_asked_for(unreachable_hub):
    assert card_examples("nobody/nothing") == [] and card_examples("no name at all") == []


def test_a_model_that_cannot_be_shown_is_refused_in_a_sentence(one_stack, tmp_path: Path):
    with refused(OSError, "/nowhere"):
        ShownModel.load("/nowhere")
    model, tokenizer = load_model(one_stack["classify"], translates=False)
    model.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with refused(ValueError, "task"):
        ShownModel.load(str(tmp_path))
