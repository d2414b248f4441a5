"""A damaged model is refused in one sentence that names it, or translates as its files say; odd options likewise."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import Reference, UnusableError
from small_models import save_translator

from vanilla_transformer.cli import main

LINES = ["one two", "a", "", "c d e"]
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
FIELDS = ["vocab_size", "d_model", "d_ff", "num_heads", "d_k", "encoder_layers", "decoder_layers", "layer_norm_eps"]
FIELDS += ["positional_encoding", "activation_function", "tie_word_embeddings", "attention_bias", "model_type"]
VALUES: list[Any] = [None, True, -1, 0, 1, 3, 1.5, 10**12, "2", "", [], {}, "no-such"]
DAMAGES = st.one_of(
    st.tuples(st.just("cut"), st.sampled_from([WEIGHTS, CONFIG, TOKENIZER]), st.floats(0, 0.999)),
    st.tuples(st.just("removed"), st.sampled_from([WEIGHTS, CONFIG]), st.none()),
    st.tuples(st.just("longer"), st.sampled_from([WEIGHTS, CONFIG, TOKENIZER]), st.sampled_from([b"x", b"{}", b"\0"])),
    st.tuples(st.just("header"), st.just(WEIGHTS), st.tuples(st.floats(0, 0.999), st.integers(0, 255))),
    st.tuples(st.just("number"), st.just(WEIGHTS), st.tuples(st.floats(0, 0.999), st.sampled_from([np.nan, 7]))),
    st.tuples(st.just("field"), st.just(CONFIG), st.tuples(st.sampled_from(FIELDS), st.sampled_from(VALUES))),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    directory = save_translator(tmp_path_factory.mktemp("whole") / "model", decoder_layers=2)
    settings = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps({**settings, "max_length_beyond_source": 4}))
    return directory


def damage(model: Path, kind: str, name: str, how: Any) -> None:
    data = bytearray((model / name).read_bytes())
    header = int.from_bytes(data[:8], "little") + 8
    if kind == "removed":
        (model / name).unlink()
        return
    if kind == "cut":
        del data[int(how * len(data)) :]
    elif kind == "longer":
        data += how
    elif kind == "header":
        data[int(how[0] * header)] = how[1]
    elif kind == "number":
        place = header + 4 * int(how[0] * ((len(data) - header) // 4))
        data[place : place + 4] = np.float32(how[1]).tobytes()
    else:
        data = bytearray(json.dumps({**json.loads(data), how[0]: how[1]}).encode())
    (model / name).write_bytes(bytes(data))


def translate(model: Path, *options: str) -> tuple[int, list[str], str]:
    text, out, err = model.parent / "text", io.StringIO(), io.StringIO()
    text.write_text("".join(f"{line}\n" for line in LINES))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["translate", str(model), str(text), "--precision", "float32", *options])
    return code, out.getvalue().splitlines(), err.getvalue()


@settings(max_examples=40)
@given(done=DAMAGES)
def test_a_damaged_model_is_refused_or_used_as_its_files_say(done, whole, tmp_path_factory):
    model = shutil.copytree(whole, tmp_path_factory.mktemp("damaged") / "model")
    damage(model, *done)
    code, lines, said = translate(model)
    assert "Traceback" not in said and "a bug" not in said
    if code != 0:
        errors = [line for line in said.splitlines() if "error: " in line]
        assert len(errors) == 1 and "model" in errors[0] and not lines
        return
    try:
        expected = Reference(model)
    except UnusableError:
        assert done[0] in ("field", "longer"), said  # A field that is not used, space after JSON.
        expected = Reference(whole)
    assert lines == [expected.translate(line) for line in LINES]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e400", "", "x", "4,5"])
@pytest.mark.parametrize(
    "option", ["num-beams", "batch-tokens", "length-penalty", "max-length-beyond-source", "nbest"]
)
def test_an_odd_value_of_an_option_is_refused_by_its_name_or_used(option, value, whole):
    code, lines, said = translate(whole, f"--{option}", value)
    assert "Traceback" not in said and "a bug" not in said
    if code == 0:
        assert len(lines) == len(LINES) and float(value) in (0, -1)
    else:
        assert option.replace("-", " ") in said.replace("-", " ").replace("_", " ") and not lines
