"""The whole search in one graph finds what the search in small steps finds, batches with padding too."""

import pytest
import torch
from searches import END, PAD, START, sentences, sharp

from vanilla_transformer.engine.onnx_search import GraphSearch
from vanilla_transformer.engine.search import BeamSearch, Hypotheses, Limits, greedy_search
from vanilla_transformer.model.generation_vanilla_transformer import GoogleLengthPenalty

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed: pip install 'vanilla-transformer[export]'")

ARCHITECTURES = {
    "the paper's": {},
    "learned positions": {"positional_encoding": "learned", "max_position_embeddings": 64},
    "biases": {"attention_bias": True, "output_bias": True, "activation_function": "gelu"},
    "three embeddings, one head": {"tie_word_embeddings": False, "num_heads": 1, "activation_function": "silu"},
    "narrow keys": {"d_k": 3, "d_v": 5},
    "narrow values": {"d_k": 9, "d_v": 4},
}
BATCHES = {"one": [5], "a few": [3, 7, 2], "many": [2, 9, 4, 4, 6, 3, 3, 8, 5, 10]}
# Width, exponent, Google's penalty, early stopping, limit beyond the source, hypotheses that count.
BEAMS = {
    "the paper's": (4, 0.6, True, "never", 6, 1),
    "all of a beam": (4, 0.6, True, "never", 6, 4),
    "the library's penalty": (3, 1.0, False, False, 4, 3),
    "the first that end": (5, 0.7, False, True, 3, 2),
    "long ones preferred": (2, -1.0, True, "never", 5, 2),
    "as long as the source": (4, 0.6, True, "never", 0, 1),
}


def limits(lengths: list[int], beam: tuple) -> Limits:
    width, exponent, google, early_stopping, beyond, counted = beam
    allowed = (torch.tensor(lengths) + beyond).clamp(min=1)
    ends = torch.tensor([END, *range(50, 56)])
    return Limits(
        ends,
        (1 + len(ends)) * width,
        allowed,
        allowed,
        counted,
        GoogleLengthPenalty(exponent) if google else exponent,
        early_stopping,
    )


class Uncached:
    """A `Decoding` that asks the model about all tokens again and again."""

    def __init__(self, model, ids: torch.Tensor, mask: torch.Tensor) -> None:
        self.model, self.mask = model, mask
        self.states = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        self.tokens = torch.empty(len(ids), 1, 0, dtype=torch.long)

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        self.tokens = torch.cat((self.tokens, tokens_NW[..., None]), -1)
        width = tokens_NW.shape[1]
        return self.model(
            encoder_outputs=(self.states.repeat_interleave(width, 0),),
            attention_mask=self.mask.repeat_interleave(width, 0),
            decoder_input_ids=self.tokens.flatten(0, 1),
        ).logits[:, -1]

    def reorder(self, parents_NW: torch.Tensor) -> None:
        self.tokens = self.tokens.gather(1, parents_NW[..., None].expand(-1, -1, self.tokens.shape[2]))

    def select(self, kept: torch.Tensor) -> None:
        self.tokens, self.states, self.mask = self.tokens[kept], self.states[kept], self.mask[kept]


def assert_same(found: Hypotheses, expected: Hypotheses, counted: int) -> None:
    """The same scores, tokens and descent of those that count."""
    torch.testing.assert_close(found.scores[:, :counted], expected.scores[:, :counted], atol=1e-4, rtol=1e-5)
    lengths = expected.lengths[:, :counted]
    assert torch.equal(found.lengths[:, :counted], lengths)
    steps = int(lengths.max())
    there = (torch.arange(steps) < lengths[..., None])[:, :, None].expand(-1, -1, 2, -1)
    ours, theirs = (part.paths[:, :counted, :, :steps] for part in (found, expected))
    assert torch.equal(ours[there], theirs[there])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@torch.inference_mode()
def test_graph_finds_the_same_as_the_stepwise_search(architecture: dict, side: str):
    model = sharp(3, **architecture)
    search, written = GraphSearch(model), set()
    for seed, lengths in enumerate(BATCHES.values()):
        ids, mask = sentences(seed, lengths, side).values()
        start = torch.full((len(ids), 1), START)
        for beam in BEAMS.values():
            until = limits(lengths, beam)
            expected = BeamSearch(Uncached(model, ids, mask), start, beam[0], until).run()
            found = search.beam(ids, mask, START, until, beam[0])
            assert_same(found, expected, until.counted)
            written |= set(found.lengths[:, 0].tolist())
            tokens, ended = search.greedy(ids, mask, START, until)
            greedy = greedy_search(Uncached(model, ids, mask), start, until, PAD)[:, 1:]
            assert int(ended.max()) == greedy.shape[1]
            after = torch.arange(tokens.shape[1]) >= ended[:, None]
            assert torch.equal(tokens.masked_fill(after, PAD)[:, : greedy.shape[1]], greedy)
    assert len(written) > 3, "hypotheses must end where they want"


@torch.inference_mode()
def test_a_sentence_is_found_in_a_batch_as_it_is_found_alone():
    model = sharp(5)
    search, lengths = GraphSearch(model), BATCHES["many"]
    ids, mask = sentences(0, lengths, "right").values()
    beam = BEAMS["all of a beam"]
    together = search.beam(ids, mask, START, limits(lengths, beam), beam[0])
    for number, length in enumerate(lengths):
        one = slice(number, number + 1)
        alone = search.beam(ids[one, :length], mask[one, :length], START, limits([length], beam), beam[0])
        assert_same(Hypotheses(*(part[one] for part in together)), alone, beam[0])


@torch.inference_mode()
def test_weights_are_those_of_the_moment_when_it_was_made():
    model = sharp(5)
    search, (ids, mask), beam = GraphSearch(model), sentences(0, [6], "right").values(), BEAMS["the paper's"]
    before = search.beam(ids, mask, START, limits([6], beam), beam[0])
    for weight in model.parameters():
        weight.neg_()
    assert torch.equal(search.beam(ids, mask, START, limits([6], beam), beam[0]).scores, before.scores)
    assert not torch.equal(GraphSearch(model).beam(ids, mask, START, limits([6], beam), 4).scores, before.scores)


def test_it_is_for_small_models_and_few_sentences_with_tokens_that_there_are():
    model, ids, start = sharp(5), torch.tensor([[5, END]]), torch.tensor([[START]])
    with model.frozen() as held:
        search = held.search(torch.float32, None)
        assert isinstance(search, GraphSearch) and search.suits(ids, start)
        assert not search.suits(ids, start.expand(1 << 26, 1))
        assert not search.suits(ids - 6, start) and not search.suits(ids, start + 1000)
        assert held.search(torch.float32, "int8") is held.search(torch.bfloat16, None) is None


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_frozen_decodes_without_it_where_it_is_not_installed(package: str, missing):
    model, inputs = sharp(5), sentences(0, [6], "right")
    expected = model.generate(**inputs)
    missing(package)
    with model.frozen() as held:
        assert torch.equal(model.generate(**inputs), expected)
        assert held.search(torch.float32, None) is None


@pytest.mark.parametrize("fields", [{"activation_function": "gelu_fast"}, {"d_ff": 1 << 18}])
def test_frozen_decodes_without_it_what_it_does_not_compute_or_not_fast(fields: dict):
    with sharp(5, **fields).frozen() as held:
        assert held.search(torch.float32, None) is None
