"""The ONNX graph and `generate` find the same hypotheses, for any supported settings and for any batch."""

import pytest
import torch
from hypothesis import given, settings as examples, strategies as st
from refusals import refused
from searches import ARCHITECTURES, sentences, sharp

from vanilla_transformer.errors import ModelError
from vanilla_transformer.graph.session import Session
from vanilla_transformer.graph.settings import Settings
from vanilla_transformer.graph.supported import shapes


def session(model, **call) -> Session:
    """Returns the ONNX graph of a model, with the settings of a call."""
    config, own = model.config.to_dict(), model.generation_config.to_diff_dict()
    state = {name: weight.float().numpy() for name, weight in model.state_dict().items()}
    return Session(config, ((name, state[name]) for name in shapes(config)), Settings.of(config, own, call))


def rows_of(inputs: dict[str, torch.Tensor]) -> list[list[int]]:
    return [row[mask.bool()].tolist() for row, mask in zip(*inputs.values(), strict=True)]


def assert_as_generate(found, expected, beams: int, per: int = 1) -> None:
    """The same tokens, and the same scores where there is a beam."""
    hypotheses = [one for some in found for one in some]
    sequences = expected.sequences[:, 1:].tolist()
    for number, (one, tokens) in enumerate(zip(hypotheses, sequences, strict=True)):
        theirs = expected.sequences_scores[number].item() if beams > 1 else one.score
        if theirs < -1e8:
            continue  # The library fills up where there are fewer hypotheses than are asked for.
        assert one.tokens == tokens[: len(one.tokens)] and not any(tokens[len(one.tokens) :])
        assert one.score == pytest.approx(theirs, rel=1e-5, abs=1e-4)


# A head's keys are as wide as its values.
ONE_WIDTH = ARCHITECTURES.map(lambda fields: fields | dict.fromkeys(fields.keys() & {"d_k"}, 11))
SETTINGS = st.fixed_dictionaries(
    {"num_beams": st.integers(1, 5)},
    optional={
        "length_penalty": st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
        "length_penalty_type": st.sampled_from(["google", "huggingface"]),
        "early_stopping": st.sampled_from([True, False, "never"]),
        "max_length": st.sampled_from([4, 12]),
        "max_new_tokens": st.sampled_from([1, 3, 20, 40]),
        "max_length_beyond_source": st.integers(0, 30),
        "min_new_tokens": st.sampled_from([2, 5]),
        "suppress_tokens": st.sampled_from([[6, 7], [2, 6]]),
        "bad_words_ids": st.sampled_from([[[5], [9]], [[5], [2]]]),
        "eos_token_id": st.just([2, 11]),
        "forced_eos_token_id": st.sampled_from([2, [2, 11]]),
        "renormalize_logits": st.just(True),
    },
)


@examples(max_examples=150)
@given(
    st.integers(0, 30),
    ONE_WIDTH,
    st.sampled_from([{}, {"max_new_tokens": 3}, {"max_length": 7}]),
    SETTINGS,
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.booleans(),
)
def test_the_graph_finds_what_generate_finds(
    seed: int, fields: dict, own: dict, call: dict, lengths: list[int], all_of_them: bool
):
    model, inputs = sharp(seed, **fields), sentences(seed, lengths, "right")
    model.generation_config.update(**own)
    if call["num_beams"] == 1:
        call = {name: one for name, one in call.items() if name not in ("early_stopping", "length_penalty")}
    if all_of_them:
        call = call | {"num_return_sequences": call["num_beams"]}
    if call.get("forced_eos_token_id") == [2, 11] and 2 not in call.get("suppress_tokens", ()):
        call = call | {"forced_eos_token_id": 2}  # Of two possible ends, either may win.
    if call.get("forced_eos_token_id") == 2 and 2 in call.get("suppress_tokens", ()):
        with refused(ModelError, "forced_eos_token_id"):  # `generate` then has no possible token.
            session(model, **call, **({} if call.keys() & {"max_new_tokens", "max_length"} else {"max_length": 9}))
        return
    expected = model.generate(**inputs, **call, return_dict_in_generate=True, output_scores=True)
    assert_as_generate(session(model, **call).search(rows_of(inputs)), expected, call["num_beams"])
