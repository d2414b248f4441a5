"""Several processes at one run, on the CPU: the same training as one, and an end for all."""

import json
import os
import re
import signal
import time
from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import pairwise

import psutil
import pytest
import torch
from accelerate import Accelerator
from launching import DEV_PAIRS, EPOCH, PAIRS, STEPS, Launch, command, write_recipe
from refusals import refused
from safetensors.torch import load_file

from vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer
from vanilla_transformer.data.batching import share
from vanilla_transformer.data.corpus import CorpusError, read_corpus
from vanilla_transformer.data.preparation import prepare_corpus
from vanilla_transformer.distributed import peers, processes
from vanilla_transformer.distributed.peers import LaunchError
from vanilla_transformer.recipe.reading import load_recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training import loop, setup

TASK = get_task("translation")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The file of a recipe of a tiny run."""
    return write_recipe(tmp_path_factory.mktemp("pairs"))


def figures(directory):
    """All that metrics.jsonl says, but for the time that it took."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in record.items() if not name.startswith(("seconds", "tokens_per"))}
        for record in records
    ]


def assert_same_training(directory, alone):
    """The same losses and weights, but for the order of sums."""
    for together, expected in zip(figures(directory), figures(alone), strict=True):
        assert together == pytest.approx(expected, rel=1e-4)
    weights, expected = load_file(directory / "model.safetensors"), load_file(alone / "model.safetensors")
    for name in expected.keys() | weights.keys():
        torch.testing.assert_close(weights[name], expected[name], atol=1e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """The directory of the same run of one process."""
    folder = tmp_path_factory.mktemp("alone")
    launch = Launch(1, command(recipe, folder / "model"), folder, environment={"WORLD_SIZE": 1})
    assert launch.codes() == [0], launch.printed(0)
    return folder / "model"


def test_processes_train_as_one_does_each_on_pairs_of_its_own(recipe, alone, tmp_path):
    launch = Launch(4, command(recipe, tmp_path / "model"), tmp_path, deed=count_exchanges)
    assert launch.codes() == [0] * 4, launch.printed_by_all()
    assert_same_training(tmp_path / "model", alone)
    VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "summary.json").read_text())["averaged_steps"] == [2, 4, 6]
    assert [launch.printed(rank) for rank in (1, 2, 3)] == ["exchanges: 6\n"] * 3

    steps = steps_of(recipe, alone, tmp_path)
    for rank, rows in enumerate(launch.rows("train")):
        assert rows == [row for step in steps for batch in share(step, rank, 4) for row in batch]
    assert sorted(row for step in steps[:EPOCH] for batch in step.batches for row in batch) == list(range(PAIRS))
    dev = launch.rows("dev")
    assert Counter(row for rows in dev for row in rows) == dict.fromkeys(range(DEV_PAIRS), 2)
    assert max(map(len, dev)) < DEV_PAIRS


def steps_of(recipe, directory, folder):
    """The pairs of each step."""
    settings, tokenizer = load_recipe(recipe), VanillaTransformerTokenizer.from_pretrained(directory)
    corpus = prepare_corpus(
        read_corpus(settings.data.train[0]), tokenizer, TASK, max_length=256, directory=folder / "tokens"
    )
    plan = loop.make_plan(corpus, settings)
    assert len(plan.epoch(0)) == EPOCH
    return [*plan.epoch(0), *plan.epoch(1)][:STEPS]


def test_resuming_with_another_number_of_processes_changes_nothing(recipe, alone, tmp_path):
    stages = ((2, 1), (1, 3), (4, 5), (2, STEPS))
    for number, last_step in stages:
        deed = partial(ask_to_stop, last_step=last_step) if last_step < STEPS else None
        launch = Launch(number, command(recipe, tmp_path / "model"), tmp_path, deed=deed)
        assert launch.codes() == [143 if deed else 0] * number, launch.printed_by_all()
    said = (tmp_path / "model" / "train.log").read_text()
    for (before, step), (now, _) in pairwise(stages):
        assert f"Going on from the checkpoint of step {step}." in said
        assert f"The number of processes was {before} and is now {now}" in said
    assert_same_training(tmp_path / "model", alone)


def test_several_processes_at_a_finished_run_all_end_well(recipe, alone, tmp_path):
    launch = Launch(2, command(recipe, alone), tmp_path)
    assert launch.codes() == [0, 0], launch.printed_by_all()
    assert "is finished, there is nothing to do" in launch.printed(0) and launch.printed(1) == ""


LOST = r"error: Another process of this run has died or hangs: .* from the last checkpoint\. \("


def test_a_process_that_is_killed_ends_all_and_the_same_command_goes_on(recipe, alone, tmp_path):
    whole = tmp_path / "model" / "checkpoints" / "step-00000004"
    launch = Launch(3, command(recipe, tmp_path / "model"), tmp_path, deed=partial(killed, victim=1, after=whole))
    assert launch.codes() == [1, -signal.SIGKILL, 1], launch.printed_by_all()
    for rank in (0, 2):
        assert re.search(LOST, launch.printed(rank)), launch.printed_by_all()
    assert "Ended by an error: Another process of this run" in (tmp_path / "model" / "train.log").read_text()
    again = Launch(1, command(recipe, tmp_path / "model"), tmp_path)
    assert again.codes() == [0]
    assert "Going on from the checkpoint of step 4." in again.printed(0)
    assert_same_training(tmp_path / "model", alone)


def test_a_process_that_hangs_ends_the_others_after_the_time_limit(recipe, tmp_path):
    words = command(recipe, tmp_path / "model", process_timeout=2)
    launch = Launch(2, words, tmp_path, deed=partial(killed, victim=1, by=signal.SIGSTOP))
    launch.processes[0].join(300)
    launch.processes[1].kill()
    assert launch.codes() == [1, -signal.SIGKILL], launch.printed_by_all()
    assert re.search(LOST, launch.printed(0)), launch.printed_by_all()


def test_a_process_that_fails_says_why(recipe, tmp_path):
    launch = Launch(3, command(recipe, tmp_path / "model"), tmp_path, deed=partial(out_of_memory, victim=1))
    assert launch.codes() == [1, 1, 1], launch.printed_by_all()
    assert "error: " in launch.printed(1) and "Out of memory" in launch.printed(1)
    for rank in (0, 2):
        assert re.search(LOST, launch.printed(rank)), launch.printed_by_all()


def test_no_port_is_listened_on_but_the_launchers_and_the_groups_own(recipe, tmp_path):
    launch = Launch(2, command(recipe, tmp_path / "model", max_steps=3), tmp_path, deed=tell_ports)
    assert launch.codes() == [0, 0], launch.printed_by_all()
    for rank in (0, 1):
        ports = dict(re.findall(r"^ports (.*?): ?(.*)$", launch.printed(rank), re.MULTILINE))
        assert ports["before the group"] == ("launcher" if rank == 0 else "")
        assert ports["in a step"] == ports["of the group"]


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        (
            "other_recipe",
            r"Process 1 on \S+ was started with seed 2, the main process with 1: give all the same",
        ),
        (
            "other_data",
            r"Process 1 on \S+ reads other pairs for train than the main process: the files must",
        ),
        ("other_disk", r"Process 1 on \S+ does not see the output directory .*model of the main process: name one on"),
        ("no_data", r"^vanilla-transformer: error: train\.en cannot be read\.$"),
        ("bad_main", r"^vanilla-transformer: error: train\.en cannot be read\.$"),
    ],
)
def test_processes_that_do_not_mean_the_same_run_are_told_so(recipe, tmp_path, deed, sentence):
    launch = Launch(2, command(recipe, tmp_path / "model"), tmp_path, deed=globals()[deed])
    assert launch.codes() == [1, 1], launch.printed_by_all()
    teller = 1 if deed == "no_data" else 0
    assert re.search(sentence, launch.printed(teller), re.MULTILINE), launch.printed_by_all()
    assert "error" not in launch.printed(1 - teller)
    assert not (tmp_path / "model" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}, "--multi_gpu --num_processes"),
        (
            {"WORLD_SIZE": "4", "RANK": "1"},
            "WORLD_SIZE 4 LOCAL_RANK",
        ),
    ],
)
def test_process_without_its_companions_is_refused(monkeypatch, tmp_path, environment, named):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with refused(LaunchError, *named.split()):
        processes.check_launch()


@pytest.mark.parametrize("environment", [{}, {"ACCELERATE_MIXED_PRECISION": "no"}, {"MASTER_ADDR": "127.0.0.1"}])
def test_a_process_that_was_to_be_alone_is_not_stopped(monkeypatch, tmp_path, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    processes.check_launch()


def test_weights_are_not_divided_among_processes(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with refused(LaunchError, "FSDP", "--multi_gpu"):
        processes.check_launch()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_waits_for_one_that_never_comes_says_so(recipe, tmp_path, rank):
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}
    launch = Launch(1, command(recipe, tmp_path / "model"), tmp_path, environment=environment, deed=wait_a_second)
    assert launch.codes() == [1]
    assert "error: Not all 2 processes connected within 1 s (" in launch.printed(0), launch.printed_by_all()
    assert "start that many, all with the same MASTER_ADDR" in launch.printed(0)


def at_step(number, act):
    """Has a process do something before a step."""
    update = loop.TrainingLoop._update

    def acting_update(self, *arguments):
        if self.progress.step == number:
            act()
        update(self, *arguments)

    loop.TrainingLoop._update = acting_update


def count_exchanges(rank):
    """Has every process but the main one say at its end how often gradients went round."""
    counts, compute_loss, no_sync, end = (
        Counter(),
        loop.TrainingLoop._loss,
        Accelerator.no_sync,
        Accelerator.end_training,
    )

    def counting_loss(self, *arguments, **named):
        counts["losses"] += self.plain_model.training
        return compute_loss(self, *arguments, **named)

    def counting_no_sync(self, model):
        counts["held back"] += 1
        return no_sync(self, model)

    def telling_end(self):
        print("exchanges:", counts["losses"] - counts["held back"])
        end(self)

    if rank > 0:
        loop.TrainingLoop._loss, Accelerator.no_sync = counting_loss, counting_no_sync
        Accelerator.end_training = telling_end


def wait_a_second(rank):
    peers.LONGEST_JOINING = timedelta(seconds=1)


def ask_to_stop(rank, last_step):
    if rank == 0:
        at_step(last_step - 1, partial(os.kill, os.getpid(), signal.SIGTERM))


def killed(rank, victim, after=None, by=signal.SIGKILL):
    """In step 5, and once `after` is there: checkpoints are written beside training."""

    def end():
        while after is not None and not after.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), by)

    if rank == victim:
        at_step(5, end)


def tell_ports(rank):
    """Has a process print the ports that it listens on."""
    start, launcher = setup.start_accelerator, int(os.environ["MASTER_PORT"])

    def tell(when):
        connections = psutil.Process().net_connections("tcp")
        ports = sorted({connection.laddr.port for connection in connections if connection.status == "LISTEN"})
        print(f"ports {when}:", *("launcher" if port == launcher else port for port in ports))

    def starting(*arguments):
        tell("before the group")
        accelerator = start(*arguments)
        tell("of the group")
        return accelerator

    setup.start_accelerator = starting
    at_step(2, partial(tell, "in a step"))


def out_of_memory(rank, victim):
    def fail():
        raise MemoryError("no memory is left")

    if rank == victim:
        at_step(5, fail)


def other_recipe(rank):
    if rank == 1:
        check = processes.check_same_recipe
        setup.check_same_recipe = lambda others, recipe: check(others, recipe.with_options(seed=2))


def other_data(rank):
    if rank == 1:
        original = setup.gather_inputs

        def gather(*arguments):
            inputs = original(*arguments)
            inputs.train.tokens = inputs.train.tokens[::-1]
            return inputs

        setup.gather_inputs = gather


def other_disk(rank):
    processes.LONGEST_DELAY = 0.0
    if rank == 1:
        setup.RECIPE = "nothing"


def no_data(rank):
    if rank == 1:
        setup.gather_inputs = unreadable


def bad_main(rank):
    setup.gather_inputs = unreadable


def unreadable(*arguments):
    raise CorpusError("train.en cannot be read")
