"""Trainings side by side: each does what it says, a turn at a time, and the table says what was measured."""

import dataclasses
import json

import pytest
from accelerate.state import AcceleratorState
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from scripts.benchmarks import train as bench_train
from scripts.benchmarks import training_contestants
from scripts.benchmarks.train import Results, measure, plan, prepared, summarise, table
from scripts.benchmarks.training_contestants import CONTESTANTS, OURS, PEAK, TASKS, Turns
from vanilla_transformer.training.devices import Peak


def turn(tokens, seconds, **figures):
    others = {"padding": 0.1, "between": 0.02, "flops": 5e9, "memory": 10**9}
    return {"tokens": tokens, "seconds": seconds, **others, **figures}


RESULTS = Results(
    {
        PEAK: [{"peak": 10e9, "source": "measured", "device": "1 CPU thread"}, {"peak": 8e9}],
        OURS: [turn(400, 1.0), turn(900, 3.0)],
        "marian": [turn(100, 1.0, memory=3 * 10**9), turn(100, 1.0, between=0.5)],
        "marian-compiled": [],
    },
    {"marian-compiled": "InductorError: no compiler"},
)


@pytest.fixture(scope="module")
def job(tmp_path_factory, pairs):
    directory = tmp_path_factory.mktemp("bench")
    words = f"--preset tiny --d-model 16 --d-ff 32 --num-heads 2 --encoder-layers 1 --decoder-layers 1 --threads 1 \
        --vocab-size 270 --batch-tokens 300 --precision bfloat16 {pairs[0][1]} {pairs[0][2]}"
    return prepared(bench_train._arguments(words.split()), directory)


@pytest.fixture(scope="module")
def text_job(tmp_path_factory, pairs):
    """A job for each task of models of one stack."""

    def made(task):
        words = f"--task {task} --preset tiny --d-model 16 --d-ff 32 --num-heads 2 --threads 1 --max-length 16 \
            --vocab-size 270 --batch-tokens 300 --precision bfloat16 {pairs[0][1]}"
        stack = "decoder" if task == "language-modeling" else "encoder"
        arguments = bench_train._arguments([*words.split(), f"--{stack}-layers", "1"])
        return prepared(arguments, tmp_path_factory.mktemp(task))

    return {task: made(task) for task in TASKS if task != "translation"}


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """A Trainer leaves its precision behind for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Parent:
    """Asks for the given numbers of steps, one after another, and keeps the answers."""

    def __init__(self, *steps):
        self.steps, self.answers = list(steps), []

    def recv(self):
        return self.steps.pop(0)

    def send(self, answer):
        self.answers.append(answer)


def contests():
    return [(task, name) for name, one in CONTESTANTS.items() if name != "marian-compiled" for task in one.tasks]


@pytest.mark.parametrize(("task", "name"), contests())
def test_contestant_takes_the_requested_steps_and_counts_tokens(job, text_job, task, name):
    optimizer_steps, job = [], text_job.get(task, job)
    hook = register_optimizer_step_post_hook(lambda *_: optimizer_steps.append(name))
    parent = Parent(1, 3, 0)
    with pytest.raises(SystemExit):
        CONTESTANTS[name].train(job, Turns(job, parent))
    hook.remove()
    ready, first, second = parent.answers
    assert ready == {}
    assert len(optimizer_steps) == 4
    assert 0 < first["tokens"] < second["tokens"]
    assert 0 <= second["padding"] < 1
    assert 0 < second["between"] < 1
    assert second["flops"] > 0


@pytest.mark.parametrize("name", ["marian", "torch-float32", "gpt2", "bert"])
def test_the_others_train_a_model_of_about_the_size_of_ours(job, text_job, name):
    [task] = CONTESTANTS[name].tasks
    sizes, job = {}, text_job.get(task, job)
    for each in (OURS, name):
        optimizers = []
        hook = register_optimizer_step_pre_hook(lambda it, *_, o=optimizers: o.append(it))
        with pytest.raises(SystemExit):
            CONTESTANTS[each].train(job, Turns(job, Parent(1, 0)))
        hook.remove()
        groups = optimizers[0].param_groups
        sizes[each] = sum(parameter.numel() for group in groups for parameter in group["params"])
    # Biases of the projections, norms, learned positions and the head of BERT are all that differs.
    assert sizes[name] == pytest.approx(sizes[OURS], rel=0.15)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peak_is_reckoned_in_the_precision_that_trains(job, precision, monkeypatch):
    asked = []

    def peak(device, precision):
        asked.append(precision)
        return Peak(4e9, "measured")

    monkeypatch.setattr(training_contestants, "device_peak", peak)
    job = dataclasses.replace(job, recipe=job.recipe.with_options(precision=precision))
    parent = Parent(1, 0)
    with pytest.raises(SystemExit):
        training_contestants.measure_peak(job, parent)
    assert asked == [precision]
    assert f"4 GFLOP/s in {precision} (measured)" in bench_train._page(Results({PEAK: parent.answers[1:]}, {}), job)


def test_ratios_are_taken_round_by_round_and_rates_over_all():
    figures = summarise(RESULTS)
    assert figures["marian"]["ours_against_it"] == {"median": 3.5, "least": 3.0, "most": 4.0}
    assert figures[OURS]["tokens_per_second"]["median"] == 350
    assert figures[OURS]["share_of_peak"] == pytest.approx(10e9 / 4.0 / 10e9)
    assert figures["marian"]["between_steps"] == pytest.approx(0.26)
    assert figures["marian"]["memory"] == 3 * 10**9
    assert "marian-compiled" not in figures


def test_the_table_has_a_line_for_each_and_says_what_failed():
    lines = table(RESULTS).splitlines()
    assert "3.50 (3.00 to 4.00)" in next(line for line in lines if line.startswith("| MarianMTModel"))
    assert "3.50" not in next(line for line in lines if line.startswith("| this package"))
    assert lines[-1] == "the same with torch.compile: InductorError: no compiler"


class Pretended:
    """A contest without a process; `fails` fails in its second turn, and all note when they had one."""

    order: list[tuple[str, int]] = []

    def __init__(self, name, job, longest_wait):
        self.name, self.turns = name, 0

    def answer(self):
        return {}

    def take_turn(self, steps):
        self.order.append((self.name, steps))
        self.turns += 1
        if self.name == "marian" and self.turns == 3:
            return {"failed": "no memory"}
        return {"peak": 1.0} if self.name == PEAK else turn(10 * self.turns, 1.0)

    def end(self):
        self.order.append((self.name, 0))


def test_turns_go_round_and_who_fails_has_no_more_of_them(monkeypatch):
    monkeypatch.setattr(bench_train, "Contest", Pretended)
    monkeypatch.setattr(Pretended, "order", [])
    names = [OURS, "marian"]
    results = measure(names, None, steps=5, warmup_steps=2, repeats=3, longest_wait=1, tell=lambda sentence: None)
    assert [name for name, steps in Pretended.order if steps == 2] == ["marian", PEAK, OURS]
    measured = [name for name, steps in Pretended.order if steps == 5]
    assert measured == [PEAK, OURS, "marian", OURS, "marian", PEAK, PEAK, OURS]
    assert results.failures == {"marian": "no memory"}
    assert not results.turns["marian"]
    assert [each["tokens"] for each in results.turns[OURS]] == [20, 30, 40]
    assert sorted(name for name, steps in Pretended.order if steps == 0) == sorted([PEAK, *names])


def test_a_contestant_that_cannot_train_says_why_in_one_sentence(job, monkeypatch):
    def fails(job, turns):
        raise RuntimeError("two\n lines")

    broken = {"marian": training_contestants.Contestant("broken", fails)}
    monkeypatch.setattr(training_contestants, "CONTESTANTS", broken)
    parent = Parent()
    training_contestants.take_part("marian", job, parent)
    assert parent.answers == [{"failed": "RuntimeError: two lines"}]


def test_planning_is_measured_alone(capsys):
    bench_train.main(["--plan", "20000", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["pairs"] == 20_000
    assert figures["bytes_of_the_lengths"] == 160_000
    assert 0.9 < figures["real_target_tokens"] == plan(20_000)["real_target_tokens"] < 1
    assert figures["peak_memory"] > figures["bytes_of_planning"] >= 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train.en", "name two files of text"),
        ("train.en train.de --task language-modeling", "name one file of text"),
        ("train.en --task language-modeling --contestants bert", "bert is not for language-modeling: choose"),
    ],
)
def test_contradictory_options_are_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        bench_train.main(words.split())
    assert message in capsys.readouterr().err
