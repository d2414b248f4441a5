"""Trainings side by side: each does what it says, a turn at a time."""

import pytest
from accelerate.state import AcceleratorState
from torch.optim.optimizer import register_optimizer_step_post_hook

from scripts.benchmarks import train as bench_train
from scripts.benchmarks.train import prepared
from scripts.benchmarks.training_contestants import CONTESTANTS, Turns
from tests.scripts.conftest import Parent

STACKS = {
    "translation": ["encoder", "decoder"],
    "language-modeling": ["decoder"],
    "masked-language-modeling": ["encoder"],
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, pairs):
    """A job for each task."""
    made = {}
    for task, stacks in STACKS.items():
        words = f"--task {task} --preset tiny --d-model 16 --d-ff 32 --num-heads 2 --threads 1 --max-length 16 \
            --vocab-size 270 --batch-tokens 300 --precision bfloat16 {' '.join(pairs[0][1 : 1 + len(stacks)])}"
        layers = [word for stack in stacks for word in (f"--{stack}-layers", "1")]
        made[task] = prepared(bench_train._arguments([*words.split(), *layers]), tmp_path_factory.mktemp(task))
    return made


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """A Trainer leaves its precision behind for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name != "marian-compiled"])
def test_contestant_takes_the_requested_steps_and_counts_tokens(jobs, name):
    optimizer_steps, job = [], jobs[CONTESTANTS[name].tasks[0]]
    hook = register_optimizer_step_post_hook(lambda *_: optimizer_steps.append(name))
    parent = Parent(1, 3, None)
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
