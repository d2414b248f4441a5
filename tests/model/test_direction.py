"""A model that writes its target from right to left: labels go in and text comes out as they are read."""

import copy

import pytest
import torch
from refusals import refused
from transformers import DataCollatorForSeq2Seq, TextStreamer, pipeline

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    translate_lines,
)
from vanilla_transformer.extras.combining import EnsembleForConditionalGeneration
from vanilla_transformer.extras.combining.terms import Glossary, TermError, TermTranslator
from vanilla_transformer.extras.inspection import (
    AlignmentError,
    AlignmentHeads,
    InspectionError,
    alignments,
    attention,
)
from vanilla_transformer.translation import LineTranslator

SOURCE = {
    "input_ids": torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0], [11, 2, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]),
}
# The second has no `</s>`, the third is nothing but one, and a label in the first does not count.
READ = torch.tensor([[20, 21, -100, 23, 2], [24, 25, 26, -100, -100], [2, -100, -100, -100, -100]])
WRITTEN = torch.tensor([[23, -100, 21, 20, 2], [26, 25, 24, -100, -100], [2, -100, -100, -100, -100]])


def restless(config):
    """A model that hardly repeats itself, which would read the same from both ends."""
    torch.manual_seed(0)
    config.tie_word_embeddings = False
    return VanillaTransformerForConditionalGeneration(config).eval()


@pytest.fixture
def both(tiny_config):
    """The same weights, writing from left to right and from right to left."""
    plain = restless(tiny_config)
    turned = copy.deepcopy(plain)
    turned.config.target_direction = "right-to-left"
    return plain, turned


def as_read(sequences):
    """Of each row what stands between the start and `</s>`, turned around."""
    rows = []
    for start, *tokens in sequences.tolist():
        end = tokens.index(2) if 2 in tokens else max([n for n, one in enumerate(tokens, 1) if one != 0], default=0)
        rows.append([start, *tokens[:end][::-1], *tokens[end:]])
    return torch.tensor(rows)


def test_loss_and_logits_are_those_of_turned_labels(both):
    plain, turned = both
    for model in both:
        model.train()  # There is no dropout in it, but smoothing.
        model.config.label_smoothing = 0.1
    expected, found = plain(**SOURCE, labels=WRITTEN), turned(**SOURCE, labels=READ)
    assert torch.equal(found.loss, expected.loss)
    assert torch.allclose(turned(**SOURCE, labels=READ, skip_logits=True).loss, expected.loss)
    assert torch.equal(found.logits[0, [3, 2, 1, 0, 4]], expected.logits[0])
    assert torch.equal(found.logits[1, [2, 1, 0, 3, 4]], expected.logits[1])
    assert torch.equal(found.logits[2], expected.logits[2])
    found.loss.backward()
    ids, weights = torch.arange(30).view(3, 5, 2) + 5, torch.linspace(0.1, 0.4, 30).view(3, 5, 2)
    in_writing = {"soft_target_ids": ids.clone(), "soft_target_weights": weights.clone()}
    for name, order in ((0, [3, 2, 1, 0, 4]), (1, [2, 1, 0, 3, 4])):
        for part in in_writing.values():
            part[name] = part[name, order]
    expected = plain(**SOURCE, labels=WRITTEN, **in_writing).loss
    turned_too = turned(**SOURCE, labels=READ, soft_target_ids=ids, soft_target_weights=weights).loss
    assert torch.allclose(turned_too, expected) and not torch.allclose(expected, found.loss)
    assert turned.model.shared.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    "search",
    [
        {},
        {"num_beams": 1},
        {"num_beams": 3, "num_return_sequences": 3, "return_dict_in_generate": True, "output_scores": True},
        {"max_new_tokens": 3},
        {"num_beams": 2, "repetition_penalty": 1.1},  # What only the library searches for.
    ],
    ids=str,
)
def test_generate_returns_text_as_it_is_read(both, search):
    plain, turned = both
    for _ in range(2):  # The second call goes by what the first has prepared.
        expected, found = plain.generate(**SOURCE, **search), turned.generate(**SOURCE, **search)
        if not isinstance(found, torch.Tensor):
            assert torch.equal(found.sequences_scores, expected.sequences_scores)
            expected, found = expected.sequences, found.sequences
        assert torch.equal(found, as_read(expected)) and not torch.equal(found, expected)


def test_right_to_left_models_write_in_reading_order(tiny_config):
    torch.manual_seed(0)
    tiny_config.target_direction = "right-to-left"
    model = VanillaTransformerForConditionalGeneration(tiny_config).train()
    labels = torch.tensor([[20, 21, 22, 23, 2], [24, 25, 2, -100, -100], [26, 2, -100, -100, -100]])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        model(**SOURCE, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    written = model.eval().generate(**SOURCE)[:, 1:]
    assert torch.equal(written, labels.masked_fill(labels == -100, 0))


def test_a_saved_model_knows_its_direction(both, tmp_path):
    tokenizer = VanillaTransformerTokenizer.train(["ab cd ef"], 262)
    config = both[0].config
    config.vocab_size, config.output_bias = 262, True
    plain = restless(config)
    letters = tokenizer.convert_tokens_to_ids(list("abcdef"))
    plain.lm_head.bias.data.fill_(-100.0)[letters] = 0.0
    plain.save_pretrained(tmp_path / "plain")
    config.target_direction = "right-to-left"
    plain.save_pretrained(tmp_path / "turned")
    turned = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "turned")
    plain = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "plain")
    [expected] = tokenizer.batch_decode(
        as_read(plain.generate(**tokenizer("ab", return_tensors="pt"))), skip_special_tokens=True
    )
    assert [one.text for one in translate_lines(turned, tokenizer, ["ab"])] == [" ".join(expected.splitlines())]
    assert pipeline("translation", model=turned, tokenizer=tokenizer)("ab") == [{"translation_text": expected}]
    assert pipeline("translation", model=plain, tokenizer=tokenizer)("ab") != [{"translation_text": expected}]


def test_an_ensemble_has_one_direction(both):
    plain, turned = both
    together = EnsembleForConditionalGeneration([turned, turned])
    assert torch.equal(together.generate(**SOURCE), turned.generate(**SOURCE))
    with refused(ValueError, "target_direction", "right-to-left", "left-to-right"):
        EnsembleForConditionalGeneration([turned, plain])


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"decoder_input_ids": torch.tensor([[1, 20]] * 3)}, "beginning"),
        ({"bad_words_ids": [[5, 6]]}, "bad_words_ids"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id"),
        ({"prefix_allowed_tokens_fn": lambda row, ids: [5]}, "prefix_allowed_tokens_fn"),
        ({"streamer": TextStreamer(None), "num_beams": 1}, "streamer"),
    ],
)
def test_settings_that_follow_reading_order_are_refused(both, asked, named):
    with refused(ValueError, *named.split()):
        both[1].generate(**SOURCE, **asked)


def test_a_generation_config_that_follows_reading_order_is_refused(both):
    both[1].generation_config.bad_words_ids = [[5, 6]]
    with refused(ValueError, "bad_words_ids"):
        both[1].generate(**SOURCE)


def test_labels_are_given_alone(both):
    for more in ({"decoder_input_ids": READ.clamp(min=0)}, {"logits_to_keep": 1}):
        with refused(ValueError, "labels"):
            both[1](**SOURCE, labels=READ, **more)
    tokenizer = VanillaTransformerTokenizer.train(["ab"], 260)
    with refused(ValueError, "DataCollatorForSeq2Seq"):
        DataCollatorForSeq2Seq(tokenizer, model=both[1])([{"input_ids": [5, 2], "labels": [6, 2]}])


def test_a_direction_that_there_is_not_is_refused():
    with refused(ValueError, "'left-to-right'", "'right-to-left'", "'upwards'"):
        VanillaTransformerConfig(target_direction="upwards")


def test_views_of_target_steps_refuse_right_to_left_models(both):
    turned = both[1]
    tokenizer = VanillaTransformerTokenizer.train(["ab"], 260)
    with refused(InspectionError, "right to left"):
        attention(turned, tokenizer, "a", "b")
    with refused(AlignmentError, "right to left"):
        alignments(turned, tokenizer, ["a"], ["b"])
    with refused(AlignmentError, "right to left"):
        AlignmentHeads.from_model(turned)
    with refused(TermError, "right to left"):
        TermTranslator.from_translator(LineTranslator.from_model(turned, tokenizer), Glossary({("a",): "b"}))
