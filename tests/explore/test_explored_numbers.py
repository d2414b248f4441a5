"""Every number of the page is the model's own: read from Chromium, compared with Python."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from browser import serve
from exploring import ask, log_probabilities, values_of

playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")

WORDS = ["a dog", "telephone", "naïve", "</s>", "more tokens"]
WRITERS = ["plain", "other", "language-model", "recurrent-lstm", "recurrent-gru"]
FAMILIES = [*WRITERS, "classifier", "tagger"]
# Of each, the width of the beam and α.
SEARCHES = [(1, 0.0), (4, 0.6), (8, 0.3)]


@pytest.fixture
def opened(browser, explored) -> Iterator[Any]:
    """Opens the page of a model: the model with its tokenizer, and the page."""
    with ExitStack() as stack:

        def open_page(kind: str) -> Any:
            one, page = explored(kind), browser.new_page()
            stack.callback(page.close)
            page.goto(stack.enter_context(serve(one.folder)))
            page.wait_for_selector("html[data-ready]", state="attached")
            return one, page

        yield open_page


@pytest.mark.parametrize("kind", FAMILIES)
def test_all_values_of_all_layers_are_the_models(opened, kind: str):
    explored, page = opened(kind)
    model, tokenizer = explored.model, explored.tokenizer
    words = WORDS if kind in ("plain", "other") else WORDS[:3]
    sources = [tokenizer(word, split_special_tokens=True)["input_ids"] for word in words]
    encoded = page.evaluate(
        "async (all) => { const { app } = await import('/app.js'); return all.map((one) => app.model.encode(one)); }",
        words,
    )
    assert encoded == sources
    target = [model.config.bos_token_id, 70, 80, 90] if model.config.is_encoder_decoder else None
    for word, source, mine in zip(
        words, sources, ask(page, "valuesOf", [(one, target) for one in sources]), strict=True
    ):
        there = values_of(model, source, target)
        assert len(mine) >= 2
        for name, value in mine.items():
            np.testing.assert_allclose(value, there[name], atol=1e-4, err_msg=f"{name} of {word}")
    playwright.expect(page.locator("#state")).to_contain_text("differ by at most")


@pytest.mark.parametrize("kind", WRITERS)
def test_search_tree_matches_generate_and_has_the_models_probabilities(opened, kind: str):
    explored, page = opened(kind)
    model, tokenizer = explored.model, explored.tokenizer
    ends = model.config.eos_token_id
    words = WORDS if kind == "plain" else WORDS[:1]
    asked = [(word, width, alpha) for word in words for width, alpha in SEARCHES]
    calls = [
        (tokenizer(word, split_special_tokens=True)["input_ids"], {"width": width, "alpha": alpha, "wanted": width})
        for word, width, alpha in asked
    ]
    most = {} if model.config.is_encoder_decoder else {"max_new_tokens": 24}
    for (word, width, alpha), (source, _), mine in zip(asked, calls, ask(page, "searchOf", calls), strict=True):
        beam = {"num_beams": width, "length_penalty": alpha, "num_return_sequences": width} if width > 1 else {}
        found = model.generate(
            **tokenizer(word, split_special_tokens=True, return_tensors="pt"),
            **(beam or {"num_beams": 1}),
            **most,
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert len(mine["best"]) == width
        for row, (tokens, score) in enumerate(mine["best"]):
            there = found.sequences[row, 1 if not most else len(source) :].tolist()
            length = there.index(ends) + 1 if ends in there else len(there)
            assert tokens == there[:length], (word, width, alpha, row)
            if width > 1:
                assert score == pytest.approx(found.sequences_scores[row].item(), abs=1e-4)
        nodes, scores = zip(*mine["nodes"], strict=True)
        assert len(nodes) >= width
        np.testing.assert_allclose(scores, log_probabilities(model, source, nodes), atol=1e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_explanation_of_a_number_adds_up_to_it(opened, kind: str):
    _, page = opened(kind)
    told = page.evaluate(
        """async () => {
          const { app } = await import('/app.js'), { untrue } = await import('/explore_values.mjs');
          app.whatIf.heads.add("decoder.1.self_attention.2");
          app.whatIf.layers.add("encoder.2");
          await app.compute();
          return untrue(app.model, app.result);
        }"""
    )
    assert told["worst"] < 1e-4
    assert {"linear", "softmax"} <= set(told["kinds"])
