"""A search knows its model by three methods: a table, and a decoder without a source, are searched as any other."""

import pytest
import torch

from vanilla_transformer import VanillaTransformerDecoderConfig, VanillaTransformerDecoderForCausalLM
from vanilla_transformer.engine.decoder import Decoder
from vanilla_transformer.engine.linear import Weights
from vanilla_transformer.engine.search import IMPOSSIBLE, BeamSearch, Limits, greedy_search
from vanilla_transformer.engine.search import Decoding as AnyDecoding
from vanilla_transformer.model.generation_vanilla_transformer import GoogleLengthPenalty

VOCABULARY, START, END = 24, 1, 2


class Bigrams:
    """A table of logits by the token before, scaled by all that a hypothesis and its sentence have read."""

    def __init__(self, table_VV: torch.Tensor, sentences: int) -> None:
        self.table_VV = table_VV
        self.read_NW = torch.arange(sentences)[:, None]

    def read(self, tokens_NP: torch.Tensor) -> None:
        for position in range(tokens_NP.shape[1]):
            self.step(tokens_NP[:, position, None])

    def step(self, tokens_NW: torch.Tensor) -> torch.Tensor:
        if self.read_NW.shape != tokens_NW.shape:
            self.read_NW = self.read_NW.expand_as(tokens_NW)
        self.read_NW = self.read_NW * 3 + tokens_NW
        return torch.stack(
            [self.logits(*pair) for pair in zip(tokens_NW.flatten(), self.read_NW.flatten(), strict=True)]
        )

    def reorder(self, parents_NW: torch.Tensor) -> None:
        self.read_NW = self.read_NW.expand(-1, parents_NW.shape[1]).gather(1, parents_NW)

    def select(self, sentences: torch.Tensor) -> None:
        self.read_NW = self.read_NW[sentences]

    def logits(self, token: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        # Never the same twice: which of two equal scores comes first is not said.
        return self.table_VV[token] * (1 + 0.5 * torch.sin(read.double())).float()


def limits(lengths: list[int], **changes) -> Limits:
    tensor = torch.tensor(lengths)
    plain = Limits(torch.tensor([END]), 2 * 3, tensor, tensor, 1, GoogleLengthPenalty(0.6), early_stopping="never")
    return plain._replace(**changes)


def table(seed: int) -> torch.Tensor:
    return 3 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def prompts(sentences: int, length: int = 1) -> torch.Tensor:
    return torch.tensor([[START, *range(5, 4 + length)]]).expand(sentences, -1)


def score(table_VV: torch.Tensor, number: int, prompt: list[int], tokens: list[int]) -> float:
    """The log-probability of a hypothesis, from its tokens alone."""
    model, total = Bigrams(table_VV, number + 1), 0.0
    model.select(torch.tensor([number]))
    for place, token in enumerate([*prompt, *tokens][:-1], 1):
        log_p = model.step(torch.tensor([[token]])).log_softmax(-1)
        total += float(log_p[0, [*prompt, *tokens][place]]) if place >= len(prompt) else 0.0
    return total


@pytest.mark.parametrize("sentences", [1, 3, 11])
def test_a_table_is_searched(sentences: int):
    model: AnyDecoding = Bigrams(table(3), sentences)
    lengths, rules = [4 + number % 3 for number in range(sentences)], limits
    found = BeamSearch(model, prompts(sentences, 2), 3, rules(lengths)).run()
    assert (found.scores[:, 0] > IMPOSSIBLE).all()
    for number in range(sentences):
        length = int(found.lengths[number, 0])
        assert length <= lengths[number]
        tokens = found.paths[number, 0, 0, :length].tolist()
        expected = score(table(3), number, [START, 5], tokens) / ((5 + length) / 6) ** 0.6
        assert float(found.scores[number, 0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("may_drop_finished", [True, False])
def test_a_table_is_searched_greedily(may_drop_finished: bool):
    lengths = [2, 6, 4, 6]
    found = greedy_search(
        Bigrams(table(1), 4), prompts(4), limits(lengths), padding=0, may_drop_finished=may_drop_finished
    )
    for number, row in enumerate(found.tolist()):
        model, expected = Bigrams(table(1), number + 1), [START]
        model.select(torch.tensor([number]))
        while len(expected) <= lengths[number] and END not in expected:
            expected.append(int(model.step(torch.tensor([expected[-1:]])).argmax()))
        assert row == expected + [0] * (len(row) - len(expected))


@torch.no_grad()
@pytest.mark.parametrize("sentences", [1, 2])
def test_a_decoder_without_a_source_is_searched(sentences: int):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_ff": 48, "num_heads": 4, "d_k": 6, "decoder_layers": 2}
    model = VanillaTransformerDecoderForCausalLM(VanillaTransformerDecoderConfig(vocab_size=70, **sizes)).eval()
    model.get_input_embeddings().weight.mul_(2.5)
    start = torch.tensor([[1, 8, 9], [1, 30, 31]])[:sentences]
    decoding = Decoder(model, Weights(torch.float32)).start_without_source(sentences)
    found = BeamSearch(decoding, start, 3, limits([9] * sentences)).run()
    for number in range(sentences):
        length = int(found.lengths[number, 0])
        ids = torch.cat((start[number], found.paths[number, 0, 0, :length]))[None]
        log_p = model(input_ids=ids).logits.log_softmax(-1)[0, 2:-1]
        total = log_p.gather(1, ids[0, 3:, None]).sum() / ((5 + length) / 6) ** 0.6
        assert float(found.scores[number, 0]) == pytest.approx(float(total), abs=1e-5)
