"""The command `vanilla-transformer info`, on presets, models and finished runs."""

import contextlib
import functools
import io
import json

import pytest
import torch
from small_models import SIZES, save_translator

from vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoderConfig,
    VanillaTransformerDecoderForCausalLM,
    VanillaTransformerEncoderConfig,
    VanillaTransformerEncoderForMaskedLM,
    VanillaTransformerEncoderForSequenceClassification,
    VanillaTransformerEncoderForTokenClassification,
    VanillaTransformerForConditionalGeneration,
)
from vanilla_transformer.cli import main
from vanilla_transformer.engine import cpu
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.training.loop import train


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a random model, and nothing of a run."""
    return save_translator(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished run of four steps."""
    directory = tmp_path_factory.mktemp("finished")
    (directory / "train.en").write_text("one two\nthree four five\n" * 30)
    (directory / "train.de").write_text("two one\nfive four three\n" * 30)
    corpus = (str(directory / "train.en"), str(directory / "train.de"))
    recipe = Recipe.of(
        train=corpus,
        dev=corpus,
        vocab_size=260,
        **SIZES,
        max_steps=4,
        batch_tokens=100,
        metrics=(),
        output=str(directory / "run"),
    )
    return train(recipe)


@pytest.fixture
def run(capsys):
    """Runs the command in this process: words to exit code, output and errors."""

    def run(*words):
        code = main(["info", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@functools.cache
def page(*words):
    """Returns the command's output, kept for the same words."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["info", *map(str, words)]) == 0
    return out.getvalue()


def report(*words):
    """Returns the command's JSON."""
    return json.loads(page(*words, "--json"))


def test_base_is_shown_part_by_part_beside_the_papers_number():
    out = page("base")
    assert all(len(line) <= 80 for line in out.splitlines())
    parts = dict(line.rsplit(maxsplit=2)[:2] for line in out.splitlines() if line.endswith("%"))
    assert sum(int(count.replace(",", "")) for count in parts.values()) == 63_045_632
    assert "  total                          63,045,632\n  the paper, Table 3             65 million\n" in out
    assert "  > base                  65 M   63.0 M   39,841 to 41,793\n" in out
    words = " ".join(out.split())
    assert "does not publish its vocabulary" in words
    explained = "A vocabulary of 41,004 to 41,208 entries explains 10 of the 11"
    assert f"{explained}; no single vocabulary also explains big" in words


@pytest.mark.parametrize(("preset", "share"), [("base", 0.29), ("big", 0.42)])
def test_flops_stand_beside_those_of_table_2(preset, share):
    training = report(preset)["training"]
    table_2 = training["table_2"]
    assert training["flops"] == pytest.approx(training["flops_per_target_token"] * 25_000 * training["steps"])
    assert f"{table_2['device_flops']:.1e}" == f"{table_2['table_2_flops']:.1e}"
    assert table_2["share"] == pytest.approx(share, abs=0.005)


def test_paper_models_are_recognized_by_shape_not_by_name(model, tmp_path):
    sizes = ("d_model", "d_ff", "num_heads", "d_k", "d_v", "encoder_layers", "decoder_layers")
    for name, preset in (("tiny-of-mine", "big"), ("big", None)):
        config = VanillaTransformerConfig.from_preset(preset, vocab_size=500, dropout=0.1) if preset else None
        (tmp_path / name).mkdir()
        (config or VanillaTransformerConfig.from_pretrained(model)).save_pretrained(tmp_path / name)
    large, small = (report(tmp_path / name) for name in ("tiny-of-mine", "big"))
    assert large["sizes"].items() >= {size: report("big")["sizes"][size] for size in sizes}.items()
    assert (large["training"]["steps"], large["training"]["table_2"]["table_2_flops"]) == (300_000, 2.3e19)
    assert (small["training"]["steps"], small["training"]["table_2"]) == (100_000, None)


def test_the_reason_for_other_flops_is_given():
    out = page("base")
    assert "as in the paper  9.52e17 FLOPs\n" in out
    assert "12 hours × 8 P100 × 9.5 TFLOP/s = 3.28e18" in " ".join(out.split())


def test_rows_that_leave_a_number_open_say_so_and_our_sizes_have_no_row():
    out = page("table3-A-h1")
    assert "Table 3 of the paper leaves this row open, meaning the same as base: 65 million." in " ".join(out.split())
    assert "Table 2" not in out
    assert "Table" not in page("tiny")


def test_the_vocabulary_of_a_preset_can_be_given():
    parameters = report("tiny", "--vocab-size", 32_000)["parameters"]
    assert parameters["embedding"] == 32_000 * 128
    assert parameters["total"] == sum(parameters.values()) - parameters["total"]


def test_memory_is_four_numbers_of_four_bytes_a_parameter(model):
    found = report(model)
    memory, parameters = found["memory"], found["parameters"]["total"]
    assert (memory["weights"], memory["gradients"], memory["adam"]) == (4 * parameters, 4 * parameters, 8 * parameters)
    assert memory["total"] == 16 * parameters


def test_a_model_is_counted_from_its_configuration_alone(model, tmp_path):
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(model)
    described = report(tmp_path)
    assert described["parameters"]["total"] == loaded.num_parameters()
    assert described["sizes"]["vocab_size"] == 260
    assert described["table_3"] is None and described["run"] is None
    assert "TRAINING RUN" not in page(tmp_path)


def test_training_log_ends_with_tokens_flops_time_and_peak_share(finished):
    summary = json.loads((finished / "summary.json").read_text())
    last = (finished / "train.log").read_text().splitlines()[-1]
    assert f"{summary['target_tokens']:,} target tokens in " in last and " minutes on " in last
    assert f"{summary['flops']:.2e} FLOPs, {summary['share_of_peak']:.1%} of peak (" in last
    assert "measured with matrix products on" in last
    speed = summary["flops"] / summary["seconds"]
    assert summary["share_of_peak"] == pytest.approx(speed / summary["peak_flops_per_second"])
    assert 0 < summary["share_of_peak"] < 1
    assert summary["target_tokens_per_second"] == pytest.approx(summary["target_tokens"] / summary["seconds"])


def test_a_finished_run_shows_what_it_took(finished):
    assert report(finished)["run"] == json.loads((finished / "summary.json").read_text())
    out = page(finished)
    of_run = dict(line.strip().split("  ", 1) for line in out.partition("TRAINING RUN\n")[2].splitlines())
    assert of_run["steps"].strip() == "4"
    assert {"target tokens", "minutes", "FLOPs", "share of peak", "peak is", "peak memory"} <= of_run.keys()


@pytest.mark.processor
def test_the_processor_is_shown_as_its_libraries_multiply():
    found = report("base")["processor"]
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert found["bfloat16_products"] == cpu.has_bfloat16_products()
    assert found["translate_takes"] == ("bfloat16" if cpu.has_bfloat16_products() else "float32")
    assert found["int8_weight_bits"] == (7 if cpu.saturates(torch.backends.quantized.engine) else 8)
    shown = page("base").partition("THIS PROCESSOR\n")[2].splitlines()
    assert f"{found['int8_weight_bits']}-bit weights" in shown[2]
    assert shown[3].split() == ["translate", "uses", found["translate_takes"]]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["bsae"], 1, "did you mean 'base'"),
        (["nonsense"], 1, "there are tiny, small, base"),
        (["none/there"], 1, "There is no directory none/there"),
        (["{empty}"], 1, "is not a model directory: it has no config.json"),
        (["{other}"], 1, "bert"),
        (["{broken}"], 1, "summary.json is not valid JSON"),
        (["{model}", "--vocab-size", "7"], 2, "--vocab-size applies to presets"),
        (["base", "--vocab-size", "0"], 2, "vocab_size must be at least 1, not 0"),
        (["base", "--sentence-length", "0"], 2, "sentence_length must be at least 1, not 0"),
        (
            ["base", "--vocab-size", "1" + "0" * 30],
            2,
            "vocab_size must be at most 16,777,216",
        ),
    ],
)
def test_info_refuses_unknown_models_in_one_sentence(run, model, tmp_path, words, code, part):
    places = {name: tmp_path / name for name in ("empty", "other", "broken")}
    for place in places.values():
        place.mkdir()
    (places["other"] / "config.json").write_text('{"model_type": "bert"}')
    (places["broken"] / "config.json").write_bytes((model / "config.json").read_bytes())
    (places["broken"] / "summary.json").write_text("{")
    done, out, err = run(*(word.format(model=model, **places) for word in words))
    [line] = err.splitlines()
    assert (done, out) == (code, "")
    assert line.startswith("vanilla-transformer: error: ") and line.endswith(".") and part in line


@pytest.mark.parametrize(
    ("kind", "stack"),
    [
        (VanillaTransformerDecoderForCausalLM, "decoder"),
        (VanillaTransformerEncoderForMaskedLM, "encoder"),
        (VanillaTransformerEncoderForSequenceClassification, "encoder"),
        (VanillaTransformerEncoderForTokenClassification, "encoder"),
    ],
)
def test_models_of_one_stack_are_counted_as_they_are(kind, stack, tmp_path):
    sizes = {name: value for name, value in SIZES.items() if not name.endswith("_layers")}
    config = {"encoder": VanillaTransformerEncoderConfig, "decoder": VanillaTransformerDecoderConfig}[stack]
    model = kind(config(vocab_size=260, **sizes, **{f"{stack}_layers": 3}, num_labels=5))
    model.save_pretrained(tmp_path)
    found = report(tmp_path)
    parts = found["parameters"]
    assert parts["total"] == model.num_parameters() and parts["embedding"] == 260 * 16
    assert parts.get("classifier", 0) == (0 if hasattr(model, "lm_head") else 16 * 5 + 5)
    assert not [name for name in parts if name.startswith("encoder" if stack == "decoder" else "decoder")]
    matrices = sum(weight.numel() for name, weight in model.model.layers.named_parameters() if weight.dim() == 2)
    outputs = 260 if hasattr(model, "lm_head") else 5
    if kind is VanillaTransformerEncoderForSequenceClassification:
        outputs /= 25  # One for all tokens of a text.
    if kind is VanillaTransformerEncoderForMaskedLM:
        outputs *= 3 / 25  # Those that are masked of 23 between the ends.
    attention = 3 * 2 * 25 * 16  # Scores and weighted values of every layer.
    assert found["training"]["flops_per_token"] == pytest.approx(6 * (matrices + attention + 16 * outputs))
    assert found["memory"]["weights"] == 4 * model.num_parameters()
    assert f"3 {stack} layers, d_model 16" in " ".join(page(tmp_path).split())


def test_presets_are_those_of_any_family(run):
    assert "6 decoder layers" in page("base", "--family", "decoder")
    assert report("base", "--family", "encoder")["table_3"] is None
    code, _, error = run("some/where", "--family", "encoder")
    assert code == 2 and "--family applies to presets only" in error
