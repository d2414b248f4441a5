"""Trainings side by side: each does what it says, a turn at a time, and the table says what was measured."""

import pytest
from accelerate.state import AcceleratorState
from torch.optim.optimizer import register_optimizer_step_post_hook

from scripts.benchmarks import train as bench_train
from scripts.benchmarks.train import Results, prepared, table
from scripts.benchmarks.training_contestants import CONTESTANTS, OURS, PEAK, TASKS, Turns


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
    return [(one.tasks[0], name) for name, one in CONTESTANTS.items() if name != "marian-compiled"]


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


def test_the_table_has_a_line_for_each_and_says_what_failed():
    lines = table(RESULTS).splitlines()
    assert "3.50 (3.00 to 4.00)" in next(line for line in lines if line.startswith("| MarianMTModel"))
    assert "3.50" not in next(line for line in lines if line.startswith("| this package"))
    assert lines[-1] == "the same with torch.compile: InductorError: no compiler"
