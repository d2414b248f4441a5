"""The command `vanilla-transformer`: help at once, one line out for each line in, and errors in one sentence."""

import contextlib
import errno
import gzip
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from faults import at_call, failing_disk, standard_streams
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file
from small_models import save_translator, small_recipe

from vanilla_transformer import Translator, __version__
from vanilla_transformer.cli import program
from vanilla_transformer.cli.info import Info
from vanilla_transformer.cli.program import COMMANDS
from vanilla_transformer.data import text_lines
from vanilla_transformer.evaluation import EvaluationResult, Metric, score
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.tasks import evaluate
from vanilla_transformer.tasks.registry import _TASKS
from vanilla_transformer.tasks.translation import Translation
from vanilla_transformer.training.run import train

COMMAND = [sys.executable, "-m", "vanilla_transformer"]
SHORT = ["--max-length-beyond-source", "3", "--precision", "float32"]
# Those of the package: examples that other tests run register more.
TASKS = {task.name for task in _TASKS.values()}
HELP_WITHOUT_TORCH = """
import sys
from vanilla_transformer.cli import main
for words in [[], *[line.split() for line in sys.argv[1:]]]:
    try:
        main([*words, "--help"])
    except SystemExit as done:
        assert done.code == 0, words
print(sorted({"torch", "transformers", "datasets", "accelerate"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a random model and its tokenizer."""
    return save_translator(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(run_command):
    return run_command


def assert_one_sentence(stderr, *parts):
    [line] = stderr.splitlines()
    assert line.startswith("vanilla-transformer: error: ") and line.endswith(".")
    for part in parts:
        assert str(part) in line


def test_help_of_every_command_imports_no_heavy_library():
    commands = ["train", "translate", "evaluate", "info", "average", "tokenizer"]
    # A process of the command's own name, as the package looks at it to know whether it may wait.
    code = f"import sys; sys.argv[0] = 'vanilla-transformer'\n{HELP_WITHOUT_TORCH}"
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    for option in ("--num-beams", "--metrics", "--vocab-size", "--train", "--batch-tokens", "--last"):
        assert option in done.stdout


def test_help_names_every_command(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("--help")
    assert code == 0 and len(COMMANDS) <= 16
    assert re.findall(r"• ([a-z-]+)", out) == [*COMMANDS]
    words = set(re.findall(r"[\w-]+", run("train", "--help")[1]))
    assert words >= TASKS and "None" not in words


def test_version(run):
    assert run("--version") == (0, f"vanilla-transformer {__version__}\n", "")


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6), max_size=5))
def test_translate_writes_a_line_for_each_line(run, model, lines):
    code, out, err = run("translate", model, *SHORT, stdin="".join(f"{line}\n" for line in lines).encode())
    assert (code, err) == (0, "")
    translated = out.split("\n")
    assert translated.pop() == ""
    assert len(translated) == len(lines)
    # One carriage return before a line end belongs to the line end.
    empty = [not line.removesuffix("\r").strip() for line in lines]
    assert all(text == "" for text, is_empty in zip(translated, empty, strict=True) if is_empty)


def test_translate_does_what_the_library_does_with_the_same_settings(run, model, tmp_path):
    lines = ["a b", "", "c"]
    (tmp_path / "in").write_text("a b\n\nc", encoding="utf-8")
    loaded = load_model(model, device="cpu")
    expected = Translator(*loaded, num_beams=2, length_penalty=0.0, max_length_beyond_source=3)(lines)
    options = ["--num-beams", 2, "--length-penalty", 0.0, *SHORT, "--batch-tokens", 10]
    code, out, err = run("translate", model, tmp_path / "in", "--output", tmp_path / "out", *options)
    assert (code, out, err) == (0, "", "")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "".join(f"{line.text}\n" for line in expected)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_lines_go_in_and_come_out_compressed(run, model, tmp_path, suffix):
    text, output = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    with text_lines.open_bytes(text, "wb") as file:
        file.write(b"a b\n\nc\n")
    plain = run("translate", model, *SHORT, stdin=b"a b\n\nc\n")[1]
    assert run("translate", model, text, "--output", output, *SHORT)[0] == 0
    with text_lines.open_bytes(output) as file:
        assert file.read().decode() == plain
    assert output.read_bytes() != plain.encode()


def test_translate_answers_each_line_and_ends_quietly_on_a_closed_pipe(model):
    process = subprocess.Popen(
        [*COMMAND, "translate", model, "--num-beams", "1", *SHORT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert process.stdin and process.stdout and process.stderr
    # Where the answer never comes, the end of the process is what ends the waiting.
    watchdog = threading.Timer(300, process.kill)
    watchdog.daemon = True
    watchdog.start()
    for line in (b"a\n", b"\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
    process.stdout.close()
    process.stdin.write(b"b\n")
    process.stdin.flush()
    # Standard input stays open: nothing more comes, and nobody is there to read.
    assert process.wait() == 141
    watchdog.cancel()
    assert process.stderr.read() == b""


def test_text_that_is_not_utf8_is_named_by_line_after_the_lines_before_it(run, model):
    code, out, err = run("translate", model, *SHORT, stdin=b"a\nb\n\xff\n")
    assert code == 1 and out.count("\n") == 2
    assert_one_sentence(err, "line 3", "UTF-8")


def test_debug_shows_the_traceback_wherever_it_stands(run):
    for words in (["--debug", "info", "nonsense"], ["info", "--debug", "nonsense"], ["info", "nonsense", "--debug"]):
        code, _, err = run(*words)
        assert code == 1
        assert "Traceback" in err and err.splitlines()[-1].startswith("vanilla-transformer: error: ")


def test_an_interrupt_ends_with_130(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "vanilla_transformer.cli.program")
    with at_call(1, importlib.machinery.SourceFileLoader, "exec_module"):
        assert run("info", "base") == (130, "", "")
    monkeypatch.undo()
    with at_call(1, Info, "run"):
        assert run("info", "base") == (130, "", "")


@pytest.fixture
def corpus(tmp_path):
    """Two line-aligned files, with one source twice."""
    (tmp_path / "test.en").write_text("a b\nc\na b\n")
    (tmp_path / "test.de").write_text("x y\nz\nx\n")
    return tmp_path / "test.en", tmp_path / "test.de"


def test_evaluate_prints_signed_metrics_and_writes_translations(run, model, corpus, tmp_path):
    options = ["--metrics", "wer", "sacrebleu", "--output", tmp_path / "out", *SHORT]
    code, out, err = run("evaluate", model, "--data", *corpus, *options)
    assert (code, err) == (0, "")
    wer, bleu, _ = out.splitlines()
    assert wer.startswith("wer = 100.00  (") and "items:2|nrefs:1-2" in wer
    assert bleu.startswith("sacrebleu = ") and "tok:13a" in bleu
    first, _, third, end = (tmp_path / "out").read_text(encoding="utf-8").split("\n")
    assert first == third and end == ""


def test_rows_that_training_drops_as_empty_are_counted_where_they_are_scored(run, model, tmp_path):
    table = tmp_path / "a.jsonl"
    table.write_text('{"en": "a", "de": null}\n{"en": "b", "de": " \u3000"}\n{"en": "c", "de": "d"}\n')
    code, out, _ = run("evaluate", model, "--data", table, "--metrics", "wer", *SHORT)
    assert code == 0 and "empty pairs: 2" in out
    assert evaluate(model, str(table), metrics=["wer"], max_length_beyond_source=3).figures["empty_pairs"] == 2


def test_evaluate_scores_a_model_as_its_task_does(run, model, corpus, tmp_path, monkeypatch):
    class Lengths(Translation):
        name = "lengths"
        metrics = {"length": Metric(lambda texts, references: (float(len(texts)), "texts"), by_default=True)}

        def evaluate(self, model, tokenizer, corpus, metrics, *, progress, **settings):
            scores = score(metrics, corpus["source"], [[text] for text in corpus["target"]], self.metrics)
            return EvaluationResult({one.name: one for one in scores}, [], [], {})

    monkeypatch.setitem(_TASKS, "lengths", Lengths())
    trained = shutil.copytree(model, tmp_path / "trained")
    (trained / "recipe.yaml").write_text("task: lengths\n")
    assert run("evaluate", trained, "--data", *corpus)[:2] == (0, "length = 3.00  (texts)\n\n")
    assert "lengths" in run("evaluate", trained, "--data", *corpus, "--mbr", "chrf")[2]


def test_evaluate_takes_its_metrics_from_the_recipe_in_the_model_directory(run, model, corpus, tmp_path):
    trained = tmp_path / "trained"
    shutil.copytree(model, trained)
    for recipe, names in ((None, ["sacrebleu", "chrf"]), ("metrics: [per, ter]\n", ["per", "ter"])):
        if recipe:
            (trained / "recipe.yaml").write_text(recipe)
        code, out, _ = run("evaluate", trained, "--data", *corpus, "--json", *SHORT)
        assert code == 0
        report = json.loads(out)
        assert [score["name"] for score in report["scores"]] == names
        assert report["pairs"] == 3 and report["distinct_sources"] == 2


def test_average_of_a_run_takes_its_last_checkpoints_and_the_last_step(run, tmp_path):
    output = tmp_path / "run"
    trained = train(small_recipe(tmp_path, output=str(output), max_steps=5, average_checkpoints=3, num_beams=2))
    kept = {path.name[-1]: load_file(path / "model.safetensors") for path in (output / "checkpoints").iterdir()}
    for steps, words in {"245": [], "45": ["--last", 2]}.items():
        assert run("average", trained, *words, "--output", tmp_path / steps)[0] == 0
        averaged = load_model(tmp_path / steps)[0]
        assert (averaged.generation_config.num_beams, averaged.generation_config.length_penalty) == (2, 0.6)
        for name in kept["5"]:
            mean = torch.stack([kept[step][name] for step in steps]).mean(0)
            torch.testing.assert_close(averaged.state_dict()[name], mean)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [["info", "tiny"], ["--help"], ["--version"]])
def test_output_that_cannot_be_written_is_an_error(run, words):
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full, standard_streams(stdout=full):
        code, _, err = run(*words)
        full.close()
    assert code == 1
    assert_one_sentence(err, "No space left on device", "free some space")


def test_translations_of_an_evaluation_appear_whole_or_not_at_all(run, model, corpus, tmp_path):
    words = ["evaluate", model, "--data", *corpus, "--metrics", "wer", *SHORT, "--output"]
    (tmp_path / "kept").write_text("before\n")
    (tmp_path / "link").symlink_to("kept")
    with failing_disk(errno.ENOSPC, tmp_path):
        assert run(*words, tmp_path / "link")[0] == 1
    assert (tmp_path / "kept").read_text() == "before\n"
    assert run(*words, tmp_path / "link")[0] == run(*words, tmp_path / "out.gz")[0] == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "kept").read_text().count("\n") == 3
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == (tmp_path / "kept").read_bytes()


def test_demo_says_how_gradio_is_installed(run, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, output, errors = run("demo", str(model))
    assert (code, output) == (1, "")
    assert errors.endswith("The package gradio is not installed: run `pip install 'vanilla-transformer[demo]'`.\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-steps", "30"], (None, None)),
        (["--max-steps", "5000"], (1000, 0.5)),
        (["--max-steps", "30", "--warmup-steps", "10"], (10, 0.5)),
        (["--max-steps", "30", "--learning-rate-scale", "2"], (None, 2.0)),
    ],
)
def test_a_recipe_cut_to_its_warm_up_leaves_the_warm_up_to_be_chosen(words, expected):
    recipe = program.parse(["train", "cmudict", *words]).settled()
    assert (recipe.optimization.warmup_steps, recipe.optimization.learning_rate_scale) == expected


def test_own_text_and_tokenizer_replace_those_of_the_recipe():
    words = ["--train", "a.en", "a.de", "--dev", "a.en", "a.de", "--test", "--tokenizer", "model"]
    recipe = program.parse(["train", "wmt14-en-de-base", *words]).settled()
    assert not recipe.data.corpora("train")[0].columns and recipe.tokenizer.vocab_size is None
    assert recipe.model.dropout == 0.1 and recipe.data.test == ()
