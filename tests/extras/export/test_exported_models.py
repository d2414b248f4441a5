"""Exported folders as models: `translate`, `translate_lines` and what the pipeline gives, without torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
from refusals import refused

from vanilla_transformer import load_exported, translate_lines
from vanilla_transformer.cli import main
from vanilla_transformer.translation import ExportError, UnusableModelError, is_exported, load_model

RUN = """
import sys
from vanilla_transformer.cli import main
code = main(sys.argv[1:])
assert code == 0 and "torch" not in sys.modules and "transformers" not in sys.modules
"""
IN_PYTHON = """
import sys
from vanilla_transformer import load_exported, translate_lines
model = load_exported(sys.argv[1])
print(*(line.text for line in translate_lines(model, None, ["abc", "", "hgf"], num_beams=1)), sep="|")
print(model("abc", num_beams=1))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


@pytest.fixture(params=["onnx", "ctranslate2"])
def exported(request) -> Path:
    return request.getfixturevalue(f"{request.param}_export")


def run(*words: str, input: str = "") -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", *words], input=input, capture_output=True, text=True)


def test_the_command_needs_no_torch_and_says_what_the_engine_cannot_do(exported, spelled_backwards, words, tmp_path):
    text = "".join(f"{word}\n" for word in ["", *words])
    (tmp_path / "in.txt").write_text(text)
    done = run(RUN, "translate", str(exported), str(tmp_path / "in.txt"), "--num-beams", "1", "--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    expected = translate_lines(model, tokenizer, ["", *words], num_beams=1)
    assert done.stdout.splitlines() == [line.text for line in expected]
    done = run(RUN, "translate", str(exported), "--nbest", "2", input="abc\n")
    assert done.returncode == 0 and done.stdout.count(" ||| ") == 4
    assert done.stderr.count("\n") == done.stderr.startswith("CTranslate2's search differs from the paper's: ")
    assert bool(done.stderr) == (exported.name == "ctranslate2")


@pytest.mark.parametrize("asked", ["1", "3"])
def test_an_export_has_as_many_threads_as_omp_num_threads_says(onnx_export, monkeypatch, asked):
    begun = []
    session = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda *given, **others: begun.append(given[1].intra_op_num_threads) or session(*given, **others),
    )
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    load_exported(onnx_export)
    assert begun == [int(asked)]


def test_an_export_translates_in_python_as_the_model_does(exported, spelled_backwards):
    done = run(IN_PYTHON, str(exported))
    assert (done.returncode, done.stderr) == (0, "")
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    expected = [line.text for line in translate_lines(model, tokenizer, ["abc", "", "hgf"], num_beams=1)]
    first = [{"translation_text": expected[0]}]
    assert done.stdout.splitlines() == ["|".join(expected), str(first)]


def test_onnx_gives_lines_scores_and_cut_lines_as_the_model(onnx_export, spelled_backwards, words):
    exported = load_exported(onnx_export, threads=1)
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    lines = [*words, " ", "a" * 20]
    settings = {"num_return_sequences": 2, "batch_tokens": 64, "max_source_length": 12}
    done: list[int] = []
    actual = list(translate_lines(exported, None, lines, **settings, progress=done.append))
    expected = list(translate_lines(model, tokenizer, lines, **settings, scores=True))
    assert sum(done) == len(lines)
    assert [one.truncated for one in actual] == [one.truncated for one in expected] and actual[-1].truncated
    for one, other in zip(actual, expected, strict=True):
        assert [(h.text, h.tokens) for h in one.hypotheses] == [(h.text, h.tokens) for h in other.hypotheses]
        assert [h.score for h in one.hypotheses] == pytest.approx([h.score for h in other.hypotheses], abs=1e-4)


def test_each_line_has_its_own_limit_in_greedy_search(exported, spelled_backwards, words):
    model, tokenizer = load_model(spelled_backwards, device="cpu")
    settings = {"num_beams": 1, "max_length_beyond_source": 0}
    actual = list(translate_lines(load_exported(exported), None, words, **settings))
    expected = list(translate_lines(model, tokenizer, words, **settings))
    assert [(one.text, one.hypotheses[0].tokens) for one in actual] == [
        (one.text, one.hypotheses[0].tokens) for one in expected
    ]


def test_a_file_is_gone_on_with_by_the_same_export_alone(exported, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("abc\nde\n")
    words = ["translate", str(exported), str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    assert main([*words, "--resume"]) == 0
    assert main([*words, "--resume"]) == 0
    assert "is finished: 2 lines" in capsys.readouterr().err
    shutil.copytree(exported, tmp_path / "other")
    settings = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(settings | {"another": 2}))
    words[1] = str(tmp_path / "other")
    assert main([*words, "--resume"]) == 1
    assert "model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--precision", "int8"], ["--device", "cpu"], ["--output", "out", "--tasks", "2"], ["--alignment", "words"]],
    ids=lambda o: o[-2],
)
def test_options_that_do_not_apply_are_refused(exported, tmp_path, capsys, options):
    (tmp_path / "in.txt").write_text("abc\n")
    assert main(["translate", str(exported), str(tmp_path / "in.txt"), *options]) == 2
    assert f"{options[-2]} is not for an exported model such as {exported}: " in capsys.readouterr().err


def test_settings_of_generate_that_an_export_does_not_have_are_refused(exported):
    with refused(ExportError, "do_sample", "length_penalty"):
        list(translate_lines(load_exported(exported), None, ["a"], do_sample=True))


def test_an_incomplete_export_is_refused(exported, spelled_backwards, tmp_path, capsys):
    assert is_exported(exported) and not is_exported(spelled_backwards)
    with refused(ExportError, "translate.onnx"):
        load_exported(spelled_backwards)
    with refused(UnusableModelError, "translate"):
        load_model(exported)
    damaged = "generation_config.json" if exported.name == "ctranslate2" else "translate.onnx"
    for name, wrong in (("tokenizer_config.json", None), (damaged, "nothing")):
        broken = tmp_path / name
        shutil.copytree(exported, broken)
        if wrong is None:
            (broken / name).unlink()
        else:
            (broken / name).write_text(wrong)
        with refused(ExportError, broken if wrong else name):
            load_exported(broken)
    with refused(ValueError, "tokenizer"):
        list(translate_lines(load_model(spelled_backwards)[0], None, ["a"]))


def test_settings_that_ctranslate2_does_not_have_are_refused(ctranslate2_export, tmp_path, capsys):
    unusual = tmp_path / "settings"
    shutil.copytree(ctranslate2_export, unusual)
    path = unusual / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"no_repeat_ngram_size": 2}))
    (tmp_path / "in.txt").write_text("abc\n")
    assert main(["translate", str(unusual), str(tmp_path / "in.txt")]) == 1
    assert "no_repeat_ngram_size=2 in " in capsys.readouterr().err
