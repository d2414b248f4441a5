import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from contextlib import ExitStack
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import set_seed
from faults import at_call, at_update, small_files
from refusals import refused
from safetensors.torch import load_file
from small_models import choices_of, figures, small_recipe, write_reversed
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.optimizer import register_optimizer_step_pre_hook

from vanilla_transformer import (
    Recipe,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    evaluate,
)
from vanilla_transformer.cli import main
from vanilla_transformer.cost import training_flops
from vanilla_transformer.data.corpus import read_corpus
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.errors import DivergenceError, ModelError, RunError, SettingError
from vanilla_transformer.loading.models import load_model
from vanilla_transformer.model import modeling_vanilla_transformer
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.checkpoints import latest_checkpoint
from vanilla_transformer.training.loop import TrainingLoop
from vanilla_transformer.training.run import train
from vanilla_transformer.training.steps import make_plan

TASK = get_task("translation")

# Runs that are killed are processes of their own. A server that has everything imported makes each in milliseconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["vanilla_transformer.training.loop"])


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Thirty steps of a model that learns to say numbers in the other order, with dropout, over two epochs."""
    directory = tmp_path_factory.mktemp("pairs")
    return small_recipe(
        directory,
        train=write_reversed(directory, "train", 300, seed=0),
        vocab_size=280,
        dropout=0.2,
        max_steps=30,
        warmup_steps=20,
        save_steps=3,
        eval_steps=10,
        log_steps=4,
        average_checkpoints=3,
    )


@pytest.fixture(scope="module")
def undisturbed(recipe, tmp_path_factory):
    """The directory of a run that nothing happened to."""
    return train(into(recipe, tmp_path_factory.mktemp("undisturbed") / "model")).directory


def into(recipe, output, **changes):
    return recipe.with_options(output=str(output), **changes)


def assert_same_run(run, undisturbed):
    directory = Path(run)
    assert (directory / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    assert figures(directory) == figures(undisturbed)


def as_in_a_terminal(target, recipe, arguments):
    """Under nohup SIGHUP is ignored, by these tests' processes too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    target(recipe, **arguments)


def in_background(recipe, target=train, **arguments):
    process = PROCESSES.Process(target=as_in_a_terminal, args=(target, recipe, arguments))
    process.start()
    return process


def exit_code(process):
    """Returns the exit code; kills a process that hangs."""
    process.join(timeout=300)
    hangs = process.is_alive()
    process.kill()
    process.join()
    return "hangs" if hangs else process.exitcode


def wait_for(condition, process):
    while not condition() and process.is_alive():
        time.sleep(0.002)


def says(log, words, times):
    return log.exists() and log.read_text().count(words) >= times


def with_one_thread(recipe):
    torch.set_num_threads(1)
    train(recipe)


def killed_at_call(recipe, place, number):
    """A run that gets SIGKILL when it calls a function, given as `module.name`, for the n-th time."""
    module, _, function = place.rpartition(".")
    home = importlib.import_module(f"vanilla_transformer.{module}")
    with at_call(number, home, function, partial(os.kill, os.getpid(), signal.SIGKILL)):
        with_one_thread(recipe)


def slowly(recipe):
    """A run of at least half a second, so that it is not over before the signal comes."""
    register_optimizer_step_pre_hook(lambda *_: time.sleep(0.02))
    with_one_thread(recipe)


def test_the_model_is_the_mean_of_the_last_checkpoints(undisturbed):
    final = load_file(undisturbed / "model.safetensors")
    last = [load_file(undisturbed / "checkpoints" / f"step-{step:08d}" / "model.safetensors") for step in (24, 27, 30)]
    for name in final.keys() & last[0].keys():
        torch.testing.assert_close(final[name], torch.stack([weights[name] for weights in last]).mean(0))
    assert json.loads((undisturbed / "summary.json").read_text())["averaged_steps"] == [24, 27, 30]


def test_the_losses_are_those_of_a_loop_of_ten_lines(recipe, tmp_path):
    changes = {"dropout": 0.0, "batches_per_step": 3, "log_steps": 1, "max_steps": 20, "adam_epsilon": 1e-3}
    plain = into(recipe, tmp_path / "model", **changes)
    records = [record for record in figures(train(plain)) if "loss" in record]
    losses = [record["loss"] for record in records]

    tokenizer = VanillaTransformerTokenizer.from_pretrained(tmp_path / "model")
    corpus = prepare_corpus(
        read_corpus(plain.data.train[0]), tokenizer, TASK.encoder(plain), max_length=256, directory=tmp_path / "tokens"
    )
    config = VanillaTransformerConfig.from_pretrained(tmp_path / "model")
    set_seed(plain.optimization.seed)
    model = VanillaTransformerForConditionalGeneration(config).train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-3)
    steps = make_plan(corpus, TASK, choices_of(plain)).epoch(0)
    for number, (loss, step) in enumerate(zip(losses, steps, strict=False), start=1):
        whole_step = TASK.collate(corpus.rows(np.concatenate(step.batches)), None, model.config)
        logits = model(**whole_step).logits
        expected = torch.nn.functional.cross_entropy(logits.mT, whole_step["labels"], label_smoothing=0.1)
        assert loss == pytest.approx(expected.item(), abs=1e-4)
        optimizer.param_groups[0]["lr"] = 16**-0.5 * min(number**-0.5, number * 20**-1.5)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    summary = json.loads((tmp_path / "model" / "summary.json").read_text())
    flops = training_flops(model.config, *corpus.lengths.values())
    assert summary["flops"] == pytest.approx(summary["epochs"] * flops)
    assert records[-1]["epoch"] == round(summary["epochs"], 4)


@torch._dynamo.config.patch(specialize_float=True)  # Else each is analysed twice.
def test_layers_compiled_once_for_each_kind_learn_what_others_do(recipe, tmp_path, monkeypatch):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=counter))
    # As on an accelerator, where layers always have a mask: without one there is another graph.
    monkeypatch.setattr(modeling_vanilla_transformer, "can_be_read", lambda mask: False)
    changes = {"dropout": 0.0, "max_steps": 6, "encoder_layers": 2, "decoder_layers": 2, "precision": "float32"}
    plain, compiled, stopped = (
        into(recipe, tmp_path / f"{number}", compile=number > 0, **changes) for number in range(3)
    )
    with pytest.raises(KeyError), at_update(5, lambda _: {}["stop"]):
        train(stopped)
    assert_same_run(train(stopped), train(compiled).directory)
    assert counter.frame_count == 2
    expected, found = train(plain).directory, tmp_path / "1"
    for one, other in zip(figures(found), figures(expected), strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert load_file(found / "model.safetensors").keys() == load_file(expected / "model.safetensors").keys()
    with refused(SettingError, "compile", "Transformers only"):
        TASK.config(Recipe.of(architecture="recurrent", compile=True))


def test_a_run_killed_again_and_again_at_delicate_places_ends_the_same(recipe, undisturbed, tmp_path):
    mine = into(recipe, tmp_path / "model")
    for place, number in (
        ("training.inputs.prepare_corpus", 1),  # Between the vocabulary and its tokens.
        ("training.checkpoints._commit", 1),  # Before there is any checkpoint.
        ("training.checkpoints.sync", 10),  # Between the files of a checkpoint.
        ("training.finalize.load_average", 1),
    ):
        process = in_background(mine, killed_at_call, place=place, number=number)
        assert exit_code(process) == -signal.SIGKILL
        with (tmp_path / "model" / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": 4, "lo')  # As a kill cuts a line.
    assert_same_run(train(mine), undisturbed)
    assert not list((tmp_path / "model" / "checkpoints").glob(".*"))


def test_a_signal_saves_says_so_and_leaves(recipe, undisturbed, tmp_path):
    mine, log = into(recipe, tmp_path / "model"), tmp_path / "model" / "train.log"
    for times, (sent, code) in enumerate([(signal.SIGTERM, 143), (signal.SIGHUP, 129)], start=1):
        process = in_background(mine, slowly)
        wait_for(partial(says, log, "tokens/s", times), process)
        os.kill(process.pid, sent)
        assert exit_code(process) == code
        assert log.read_text().count("with everything saved: run the same command again") == times
    with at_update(8, lambda optimizer: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        train(mine)
    assert log.read_text().count("with everything saved: run the same command again") == 3
    assert_same_run(train(mine), undisturbed)
    assert log.read_text().count("Resuming from the checkpoint at step") == 3


def test_what_a_notebook_has_set_in_torch_changes_no_weights(recipe, undisturbed, tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            run = train(into(recipe, tmp_path / "model"))
            assert_same_run(run, undisturbed)
            # A setting that only `generate` supports, so that torch decodes.
            scored = evaluate(run, recipe.data.dev[0], metrics=["chrf"], no_repeat_ngram_size=9)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    again = evaluate(run, recipe.data.dev[0], metrics=["chrf"], no_repeat_ngram_size=9)
    assert scored.predictions == again.predictions and scored.scores == again.scores


@pytest.mark.parametrize(
    ("file", "part", "reason"),
    [
        ("model.safetensors", 0.1, "File too large"),
        ("optimizer.bin", 0.6, "the disk may be full"),
        ("optimizer.bin", 0.97, "the disk may be full"),
    ],
)
def test_a_full_disk_ends_the_run_and_leaves_the_earlier_checkpoint_whole(
    recipe, undisturbed, tmp_path, file, part, reason
):
    mine, log = into(recipe, tmp_path / "model"), tmp_path / "model" / "train.log"
    room = int(part * (undisturbed / "checkpoints" / "step-00000030" / file).stat().st_size)
    with ExitStack() as stack:

        def fill_disk(optimizer):
            stack.enter_context(small_files(room))

        with at_update(7, fill_disk), refused(RunError, "step 9", "cannot be written", reason):
            train(mine)
    assert_same_run(train(mine), undisturbed)
    assert "Resuming from the checkpoint at step 6." in log.read_text()


def spoil(factor, row=slice(None)):
    """Multiplies the embedding of some tokens, as an update that went wrong would."""

    def act(optimizer):
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0][row] *= factor

    return act


def test_a_loss_that_is_no_number_ends_the_run_with_a_word_in_its_log_and_harms_no_checkpoint(recipe, tmp_path):
    mine = into(recipe, tmp_path / "model")
    with at_update(7, spoil(float("nan"))), refused(DivergenceError, "step 8", "checkpoints", "--learning-rate-scale"):
        train(mine)
    assert "NaN or infinite at step 8" in (tmp_path / "model" / "train.log").read_text().splitlines()[-1]
    newest = latest_checkpoint(tmp_path / "model" / "checkpoints")
    assert newest.step == 6
    assert all(weight.isfinite().all() for weight in load_file(newest.path / "model.safetensors").values())


@pytest.mark.parametrize(
    ("update", "harm"),
    [
        (5, spoil(1e30)),  # The last one: weights are finite, and attention to them is not.
        (3, spoil(float("nan"), 3)),  # Of a token that is in no text.
    ],
)
def test_a_broken_model_is_no_good_end_and_never_a_checkpoint(recipe, tmp_path, update, harm):
    with at_update(update, harm), refused(DivergenceError, "NaN", f"step {update}"):
        train(into(recipe, tmp_path / "model", max_steps=5))
    assert not (tmp_path / "model" / "summary.json").exists()
    kept = [path.name for path in (tmp_path / "model" / "checkpoints").glob("step-*")]
    assert kept == ["step-00000003"][: update > 3]
    for metrics in (tmp_path / "model").glob("metrics.jsonl"):
        for line in metrics.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_a_finished_run_is_not_touched_and_there_is_one_line_about_it(recipe, undisturbed, capsys):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    assert train(into(recipe, undisturbed)).directory == undisturbed
    output, errors = capsys.readouterr()
    (line,) = errors.splitlines()
    assert output == "" and "is finished, there is nothing to do: a larger --max-steps than 30" in line
    assert before == {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}


def test_another_run_is_not_touched_and_the_differences_are_named(recipe, undisturbed):
    with refused(RunError, "d_ff 32", "64", "seed 1", "2"):
        train(into(recipe, undisturbed, d_ff=64, seed=2))


def test_a_model_whose_checkpoints_are_gone_is_not_touched(recipe, undisturbed, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(undisturbed, model, ignore=shutil.ignore_patterns("checkpoints"))
    before = {path: path.stat().st_mtime_ns for path in model.rglob("*")}
    for changes in ({}, {"seed": 2}, {"max_steps": 60}):
        with refused(RunError, "checkpoints"):
            train(into(recipe, model, **changes))
    assert before == {path: path.stat().st_mtime_ns for path in model.rglob("*")}


@pytest.mark.parametrize("name", ["train", "dev"])
def test_a_run_does_not_go_on_with_other_text(recipe, tmp_path, name):
    mine = into(recipe, tmp_path / "model", max_steps=6, **{name: write_reversed(tmp_path, name, 300, seed=4)})
    train(mine)
    kept = {file: file.read_bytes() for file in (tmp_path / "model").rglob("*.safetensors")}
    write_reversed(tmp_path, name, 300, seed=5)
    with refused(RunError, name, "changed"):
        train(mine.with_options(max_steps=9))
    assert kept == {file: file.read_bytes() for file in kept}


def test_patience_ends_a_run_that_no_longer_gets_better(recipe, tmp_path, capsys):
    hopeless = into(recipe, tmp_path / "model", learning_rate_scale=0.0, eval_steps=2, patience=2)
    train(hopeless)
    summary = json.loads((tmp_path / "model" / "summary.json").read_text())
    assert summary["steps"] == 6
    assert summary["best_dev_step"] == 2
    for changes in ({}, {"max_steps": 60}):
        capsys.readouterr()
        train(hopeless.with_options(**changes))
        assert "finished, there is nothing to do: a larger --patience than 2" in capsys.readouterr().err
    train(hopeless.with_options(patience=3))
    assert json.loads((tmp_path / "model" / "summary.json").read_text())["steps"] == 8


def test_scores_and_examples_are_reported(recipe, tmp_path, capsys):
    train(
        into(recipe, tmp_path / "model", max_steps=2, metrics=("chrf",), examples=("one two",), test=recipe.data.dev)
    )
    output, errors = capsys.readouterr()
    assert output.startswith("one two\t")
    following = errors.partition("Next:\n")[2].splitlines()
    assert [line.split()[:2] for line in following if line.startswith("  ")] == [
        ["vanilla-transformer", name] for name in ("translate", "evaluate", "demo")
    ]
    summary = json.loads((tmp_path / "model" / "summary.json").read_text())
    assert {part: [score["name"] for score in scores] for part, scores in summary["scores"].items()} == {
        "dev": ["chrf"],
        "test": ["chrf"],
    }
    card = (tmp_path / "model" / "README.md").read_text()
    assert "type: chrf" in card and summary["scores"]["test"][0]["signature"] in card
    assert str(tmp_path) not in card


def test_short_run_is_scored_on_a_part_and_every_report_says_so(recipe, tmp_path):
    dev = write_reversed(tmp_path, "dev", 300, seed=7)
    search = {"num_beams": 1, "max_length_beyond_source": 0}
    train(into(recipe, tmp_path / "model", max_steps=2, dev=dev, metrics=("chrf",), **search))
    [score] = json.loads((tmp_path / "model" / "summary.json").read_text())["scores"]["dev"]
    part = re.search(r"\|(200 of \d+ different texts)$", score["signature"])[1]
    assert part in (tmp_path / "model" / "README.md").read_text()
    assert f"dev: scored on {part}" in (tmp_path / "model" / "train.log").read_text()


@pytest.fixture
def a_second_each(monkeypatch):
    """A clock on which the gradients of each step take a second, and little else takes time."""
    seconds, add = [0.0], TrainingLoop._add_gradients

    def slow(self, step):
        add(self, step)
        seconds[0] += 1

    def clock():
        seconds[0] += 1e-4
        return seconds[0]

    for module in ("loop", "setup", "finalize", "time_budget"):
        monkeypatch.setattr(f"vanilla_transformer.training.{module}.time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(TrainingLoop, "_add_gradients", slow)
    return clock


OPEN = dict.fromkeys(("max_steps", "warmup_steps", "save_steps", "eval_steps"))


def test_a_run_of_half_a_minute_plans_for_it_and_ends_within_it(recipe, tmp_path, a_second_each):
    begun = a_second_each()
    run = train(into(recipe, tmp_path / "model", max_minutes=0.5, metrics=("chrf",), **OPEN))
    assert 27 < a_second_each() - begun < 30
    kept = load_recipe(run / "recipe.yaml")
    steps = kept.optimization.max_steps
    assert run.summary.steps == steps and kept.optimization.max_minutes is None
    # The first seven seconds measured the speed, and the last two are for the end. The plan leaves time to evaluate.
    assert 18 < steps < 22 and abs(kept.optimization.warmup_steps - 0.85 * 2 * steps / 3) < 2


def test_the_minutes_of_a_command_begin_with_it_and_leave_as_long_for_its_end(
    recipe, tmp_path, a_second_each, monkeypatch, capsys
):
    begun = a_second_each()
    earlier = SimpleNamespace(perf_counter=lambda: begun - 8)  # Imports have taken eight seconds.
    monkeypatch.setattr("vanilla_transformer.cli.time", earlier)
    mine = into(recipe, tmp_path / "model", max_minutes=0.5, metrics=(), **OPEN)
    (tmp_path / "recipe.yaml").write_text(mine.to_yaml())
    assert main(["train", str(tmp_path / "recipe.yaml"), "--processes", "1"]) == 0
    assert 10 < a_second_each() - begun < 14
    assert "so about 4 steps fit into the time." in capsys.readouterr().err


def test_an_interrupted_run_keeps_its_plan_and_its_used_minutes_and_can_be_repeated(
    recipe, tmp_path, a_second_each, train_until
):
    mine = into(recipe, tmp_path / "model", max_minutes=0.5, **OPEN)
    train_until(mine, 11)
    planned, begun = load_recipe(tmp_path / "model" / "recipe.yaml"), a_second_each()
    run = train(mine)
    kept = load_recipe(run / "recipe.yaml")
    assert kept == planned.with_options(max_steps=run.summary.steps, max_minutes=None)
    # Of the first try, the ten steps before its checkpoint count.
    assert a_second_each() - begun < 20 and 26 < run.summary.steps < 29
    assert_same_run(train(into(kept, tmp_path / "again")), run.directory)


def test_a_given_number_of_steps_that_fits_is_taken(recipe, tmp_path, a_second_each):
    run = train(into(recipe, tmp_path / "model", max_minutes=0.5, max_steps=9))
    assert run.summary.steps == 9 and load_recipe(run / "recipe.yaml").optimization.warmup_steps == 20


def test_a_stopped_run_is_made_a_model_when_asked(recipe, tmp_path, train_until, capsys):
    mine = into(recipe, tmp_path / "model")
    train_until(mine, 14)
    with refused(ModelError, str(tmp_path / "model" / "recipe.yaml"), "--finish"):
        load_model(tmp_path / "model")
    assert main(["train", "--finish", "--output", str(tmp_path / "model")]) == 1  # Without the run's other options.
    assert main(["train", "--finish", "--output", str(tmp_path / "none")]) == 1
    assert "no checkpoint in " + str(tmp_path / "none") in capsys.readouterr().err and not (tmp_path / "none").exists()
    assert main(["train", str(tmp_path / "model" / "recipe.yaml"), "--finish"]) == 0
    assert json.loads((tmp_path / "model" / "summary.json").read_text())["averaged_steps"] == [6, 9, 12]
    load_model(tmp_path / "model")
    assert train(mine).summary.steps == 30


def test_translations_shown_while_it_learns_change_nothing(recipe, undisturbed, tmp_path, monkeypatch):
    sources = Path(recipe.data.dev[0].parts[0]).read_text().splitlines()
    shown = re.findall(r" · (.*) → ", (undisturbed / "train.log").read_text())
    assert len(shown) == 4 and len(set(shown)) == 2 and set(shown) <= set(sources)
    monkeypatch.setattr("vanilla_transformer.training.loop._of_middling_length", lambda sources: ["one " * 40])
    assert_same_run(train(into(recipe, tmp_path / "model")), undisturbed)
    [long] = set(re.findall(r" · (.*) → ", (tmp_path / "model" / "train.log").read_text()))
    assert len(long) == 100 and long.endswith("…")
