"""Corpora prepared in numbered tasks: the same tokens whoever makes them, and training from them."""

import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
import yaml
from refusals import refused
from vanilla_transformer.extras.many_machines.dry_run import dry_run

from vanilla_transformer.cli import main
from vanilla_transformer.data.batching import StepPlan
from vanilla_transformer.data.corpus import open_corpus
from vanilla_transformer.data.preparation import StoredCorpus, prepare_corpus
from vanilla_transformer.data.text_lines import CorpusError
from vanilla_transformer.data.token_corpus import TokenFile
from vanilla_transformer.extras.many_machines import sharding
from vanilla_transformer.extras.many_machines.folder import TaskError, TaskFolder
from vanilla_transformer.extras.many_machines.parts import PartsError
from vanilla_transformer.extras.many_machines.prepared import load_shared_tokenizer
from vanilla_transformer.extras.many_machines.sharding import ShardPreparation
from vanilla_transformer.extras.many_machines.shards import ShardedCorpus
from vanilla_transformer.recipe.blocks import RecipeError
from vanilla_transformer.recipe.schema import Recipe
from vanilla_transformer.tasks import get_task
from vanilla_transformer.training.checkpoints import Progress
from vanilla_transformer.training.inputs import gather_inputs
from vanilla_transformer.training.loop import train
from vanilla_transformer.training.prefetch import local_steps
from vanilla_transformer.training.run_directory import OutputError, RunDirectory

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
SHAPE = {"preset": "tiny", "d_model": 8, "d_ff": 8, "num_heads": 1, "encoder_layers": 1, "decoder_layers": 1}
STEPS = {"batch_tokens": 120, "batches_per_step": 2, "warmup_steps": 4, "save_steps": 1, "average_checkpoints": 1}
_STORES = itertools.count()


def write_text(directory, pairs=70):
    """Numbers and the same in the other order, with pairs that are dropped among them."""
    draw = random.Random(0)
    sentences = [[draw.choice(WORDS) for _ in range(draw.randint(0, 6))] for _ in range(pairs)]
    for name, turn in (("en", 1), ("de", -1)):
        (directory / f"text.{name}").write_text("".join(" ".join(line[::turn]) + "\n" for line in sentences))
    return str(directory / "text.en"), str(directory / "text.de")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def recipe(text):
    return Recipe.of(train=text, vocab_size=270, max_length=22)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """Prepared in one shard."""
    return prepared(recipe, tmp_path_factory.mktemp("whole") / "shards", 1)


@pytest.fixture(scope="module")
def in_four(recipe, tmp_path_factory):
    """Prepared in four shards."""
    return prepared(recipe, tmp_path_factory.mktemp("four") / "shards", 4)


def begun(recipe, directory, tasks, said=None):
    return ShardPreparation(recipe, str(directory), tasks, (lambda words: None) if said is None else said.append)


def prepared(recipe, directory, tasks):
    preparation = begun(recipe, directory, tasks)
    for number in range(tasks):
        assert preparation.run_task(number)
    assert preparation.finish() is not None
    return directory


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def rows(*paths):
    found = []
    for path in paths:
        tokens = TokenFile(path)
        columns = tokens.rows(range(len(tokens)))
        found += [tuple(ids.tolist() for ids in row) for row in zip(*columns.values(), strict=True)]
    return found


def test_two_machines_make_the_same_shards_as_one(recipe, in_four, tmp_path, monkeypatch):
    for name in ("first", "second", "shared"):
        (tmp_path / name).mkdir()
    for machine, numbers in (("first", (1, 3)), ("second", (0, 2))):
        monkeypatch.chdir(tmp_path / machine)
        preparation = begun(recipe, os.path.join("..", "shared"), 4)
        for number in numbers:
            assert preparation.run_task(number)
        assert (preparation.finish() is None) == (machine == "first")
    assert files(tmp_path / "shared") == files(in_four)


def test_any_number_of_tasks_makes_the_same_tokens_as_a_run_of_its_own(recipe, whole, in_four, tmp_path):
    stored = prepare_corpus(
        open_corpus(recipe.data.train[0]),
        load_shared_tokenizer(TaskFolder(str(whole))),
        get_task("translation"),
        max_length=recipe.data.max_length,
        directory=tmp_path / "stored",
        progress=False,
    )
    expected = rows(tmp_path / "stored" / "tokens.arrow")
    assert rows(whole / "tokens-00000.arrow") == expected and 0 < len(expected) < 70
    assert rows(*sorted(in_four.glob("tokens-*.arrow"))) == expected
    manifests = [json.loads((place / "manifest.json").read_text()) for place in (whole, in_four)]
    for manifest in manifests:
        read, kept = (sum(shard["report"][name] for shard in manifest["shards"]) for name in ("read", "kept"))
        assert (read, kept) == (70, len(expected)) == (stored.report.read, stored.report.kept)
    assert manifests[0]["shards"][0]["tokens"] == stored.tokens
    lengths = np.load(whole / "lengths-00000.npy", mmap_mode="r")
    assert lengths.dtype == np.uint16 and lengths.tolist() == [side.tolist() for side in stored.lengths.values()]
    assert isinstance(stored, StoredCorpus)


def test_the_tokenizer_is_that_of_a_run_from_the_same_text(recipe, whole, in_four, tmp_path):
    run = RunDirectory(tmp_path / "run")
    gather_inputs(recipe, run, lambda words: None)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (run.path / name).read_bytes() == (whole / name).read_bytes() == (in_four / name).read_bytes()


def test_of_a_large_corpus_the_vocabulary_is_learned_from_a_bounded_sample(recipe, tmp_path, monkeypatch):
    read = []
    original = sharding.read_pieces

    def counted(*arguments):
        for table in original(*arguments):
            read.append(table.num_rows)
            yield table

    monkeypatch.setattr(sharding, "read_pieces", counted)
    monkeypatch.setattr(sharding, "MOST_ROWS_FOR_THE_VOCABULARY", 20)
    said = []
    first = begun(recipe, tmp_path / "first", 2, said)
    assert 20 <= sum(read) <= 25
    assert any("is learned from 2" in words and "of the 70 pairs" in words for words in said)
    second = begun(recipe, tmp_path / "second", 2)
    other = begun(recipe.with_options(seed=2), tmp_path / "other", 2)
    backends = [one.tokenizer.backend_tokenizer.to_str() for one in (first, second, other)]
    assert backends[0] == backends[1] != backends[2]


def test_a_task_done_twice_at_once_leaves_one_whole_result(recipe, in_four, tmp_path):
    barrier, errors = threading.Barrier(2), []
    place = tmp_path / "shards"

    def work():
        try:
            preparation = begun(recipe, place, 4)
            for number in range(4):
                barrier.wait(30)
                preparation.run_task(number)
            barrier.wait(30)
            assert preparation.finish() is not None
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert files(place) == files(in_four)


def test_finished_tasks_stay_and_missing_or_cut_ones_are_repeated(recipe, tmp_path):
    place = prepared(recipe, tmp_path / "shards", 3)
    before, learned = files(place), (place / "tokenizer.json").stat().st_mtime_ns
    (place / "report-00001.json").unlink()
    (place / "tokens-00002.arrow").write_bytes(b"short")
    again = begun(recipe, place, 3)
    assert again.unfinished() == [1]
    with refused(TaskError, "1 of 3 tasks", "1."):
        again.refuse_unfinished()
    assert [again.run_task(number) for number in range(3)] == [False, True, True]
    assert files(place) == before and (place / "tokenizer.json").stat().st_mtime_ns == learned


@pytest.mark.parametrize(
    ("changes", "tasks", "named"),
    [
        ({"max_length": 30}, 4, "max_length 22 30"),
        ({"vocab_size": 280}, 4, "vocab_size 270 280"),
        ({}, 5, "--tasks 4 5"),
        ({"train": ("cmudict:dev",)}, 4, "another text"),
    ],
)
def test_another_job_in_the_directory_is_refused_by_name(recipe, in_four, changes, tasks, named):
    before = files(in_four)
    with refused(TaskError, *named.split()):
        begun(recipe.with_options(**changes), in_four, tasks)
    assert files(in_four) == before


def test_another_text_under_a_done_task_is_refused(recipe, tmp_path):
    words = write_text(tmp_path)
    for path in map(Path, words):
        path.write_text(f"{'very ' * 40_000}long\n{path.read_text()}")
    mine = recipe.with_options(train=words)
    place = prepared(mine, tmp_path / "shards", 2)
    # In the middle of a large file, of which the job knows the two ends.
    changed = "very " * 20_000 + "more" + (tmp_path / "text.en").read_text()[100_004:]
    (tmp_path / "text.en").write_text(changed)
    with refused(TaskError, "Task 0", "another text"):
        begun(mine, place, 2).run_task(0)


def test_shards_of_different_tokenizers_make_no_corpus(recipe, tmp_path):
    place = prepared(recipe, tmp_path / "shards", 2)
    record = json.loads((place / "report-00001.json").read_text())
    (place / "report-00001.json").write_text(json.dumps({**record, "settings": "other"}))
    again = begun(recipe, place, 2)
    with refused(TaskError, "Shard 1", "report-00001.json"):
        again.finish()
    assert again.run_task(1) and again.finish() is not None


@pytest.mark.parametrize(
    ("changes", "tasks", "kind", "named"),
    [
        ({"train": ()}, 1, RecipeError, "--train"),
        ({"train": ("cmudict:dev", "weight=2")}, 1, RecipeError, "weights"),
        (
            {"train": ("prepared:somewhere",)},
            1,
            CorpusError,
            "prepared:somewhere",
        ),
        ({"max_length": 1}, 1, CorpusError, "70 pairs"),
        ({"train": ("s3x://bucket/a", "s3x://bucket/b")}, 1, OSError, "s3x://bucket/a"),
    ],
)
def test_corpora_that_cannot_be_sharded_are_refused(recipe, tmp_path, changes, tasks, kind, named):
    with refused(kind, *named.split()):
        prepared(recipe.with_options(**changes), tmp_path / "out", tasks)


def test_more_tasks_than_a_packed_text_has_files_are_refused(recipe, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"source": "a", "target": "b"}\n')
    with refused(PartsError, "2 tasks", "t.jsonl"):
        begun(recipe.with_options(train=(str(tmp_path / "t.jsonl"),)), tmp_path / "out", 2)


def model(directory):
    return (directory / "model.safetensors").read_bytes()


def trained(recipe, output, limits=(4,), **changes):
    for limit in limits:
        fields = {"max_steps": limit, "output": str(output), "metrics": (), **SHAPE, **STEPS, **changes}
        train(recipe.with_options(**fields))
    return output


def test_one_shard_trains_to_the_weights_of_the_raw_text_bit_for_bit(recipe, whole, tmp_path):
    from_text = trained(recipe, tmp_path / "text", tokenizer=str(whole))
    from_shards = trained(recipe, tmp_path / "shards", train=(f"prepared:{whole}",))
    assert model(from_text) == model(from_shards)
    summaries = [json.loads((place / "summary.json").read_text()) for place in (from_text, from_shards)]
    for name in ("flops", "epochs", "pairs", "target_tokens"):
        assert summaries[0][name] == summaries[1][name]


def test_several_shards_that_fit_into_one_part_train_as_one(recipe, whole, in_four, tmp_path):
    one = trained(recipe, tmp_path / "one", train=(f"prepared:{whole}",), vocab_size=None)
    four = trained(recipe, tmp_path / "four", train=(f"prepared:{in_four}",), vocab_size=None)
    assert model(one) == model(four)


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_run_over_parts_ends_as_if_it_had_never_stopped(recipe, in_four, tmp_path, kind):
    url = str(in_four)
    if kind == "memory":
        url = f"memory://prepared-{next(_STORES)}"
        filesystem, path = fsspec.url_to_fs(url)
        filesystem.put(str(in_four), path, recursive=True)
    corpus = {"train": (f"prepared:{url}",), "part_pairs": 30}
    once = trained(recipe, tmp_path / "once", (12,), **corpus)
    stops, places = {"disk": (2, 5, 10), "memory": (4, 10)}[kind], []
    for limit in stops:
        often = trained(recipe, tmp_path / "often", (limit,), **corpus)
        progress = json.loads((often / "checkpoints" / f"step-{limit:08d}" / "progress.json").read_text())
        places.append((progress["epoch"], progress["part"]))
    assert len(set(places)) > 1 and any(part for _, part in places) and places[-1][0] > 0
    assert model(trained(recipe, tmp_path / "often", (12,), **corpus)) == model(once)
    records = [json.loads(line) for line in (once / "metrics.jsonl").read_text().splitlines()]
    assert 1 < records[-1]["epoch"] < 12 and records[-1]["step"] == 12


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_length": 30}, "max_length 22 30 --max-length"),
        ({"vocab_size": 280}, "vocab_size 270 280"),
        ({"tokenizer": "other"}, "tokenizer other"),
        ({"weight": 2}, "mixed weight"),
        ({"beside": True}, "mixed weight"),
    ],
)
def test_a_corpus_prepared_otherwise_than_the_recipe_says_is_refused(recipe, whole, text, tmp_path, changes, named):
    words = [f"prepared:{whole}"]
    words += [f"weight={changes.pop('weight')}"] if "weight" in changes else []
    words += ["+", *text] if changes.pop("beside", False) else []
    if "tokenizer" in changes:
        other = begun(recipe.with_options(vocab_size=271), tmp_path / "other", 1)
        changes = {"tokenizer": other.folder.url, "vocab_size": None}
    with refused(RecipeError, *named.split()):
        gather_inputs(recipe.with_options(train=tuple(words), **changes), RunDirectory(tmp_path / "run"), print)


def test_another_prepared_corpus_under_a_run_is_refused(recipe, whole, in_four, tmp_path):
    mine = recipe.with_options(vocab_size=None)
    place = tmp_path / "link"
    place.symlink_to(whole)
    trained(mine, tmp_path / "run", (2,), train=(f"prepared:{place}",))
    place.unlink()
    place.symlink_to(in_four)
    with refused(OutputError, "train", "changed"):
        trained(mine, tmp_path / "run", (3,), train=(f"prepared:{place}",))


def test_tokens_are_nothing_to_measure_on(recipe, whole, tmp_path):
    mine = recipe.with_options(dev=(f"prepared:{whole}",))
    with refused(CorpusError, "tokens", "training"):
        gather_inputs(mine, RunDirectory(tmp_path / "run"), print)


def test_the_command_does_one_task_or_all_and_says_what_it_has_made(recipe, text, in_four, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"vocab_size": 270, "max_length": 22, "train": list(text)}))
    words = ["prepare", str(tmp_path / "mine.yaml"), "--output", str(tmp_path / "out"), "--tasks", "4"]
    assert main([*words, "--task", "2"]) == 0
    assert not (tmp_path / "out" / "manifest.json").exists() and capsys.readouterr().out == ""
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'out'}\n" and "of 70 pairs" in said.err and "in 4 shards" in said.err
    assert files(tmp_path / "out") == files(in_four)
    assert main([*words, "--task", "4"]) == 2
    assert "--task counts from 0 to 3" in capsys.readouterr().err
    assert main(["prepare", "--output", "x", "mine.yaml"]) == 2
    assert "The recipe must come before all options: `prepare mine.yaml" in capsys.readouterr().err


def test_a_command_for_a_worker_says_all_of_it():
    from vanilla_transformer.extras.many_machines.commands.prepare import Prepare
    from vanilla_transformer.extras.many_machines.task_options import TaskOptions, as_line, from_line

    command = dataclasses.replace(Prepare.from_words(["cmudict"]), output="o", numbered=TaskOptions(3))
    assert from_line(as_line(command)) == command


def test_shards_go_to_a_store_and_come_from_there(recipe, in_four, tmp_path):
    url = f"memory://made-{next(_STORES)}"
    preparation = begun(recipe, url, 4)
    assert [preparation.run_task(number) for number in range(4)] == [True] * 4
    assert preparation.finish() is not None and not preparation.run_task(2)
    filesystem, path = fsspec.url_to_fs(url)
    assert {name.rsplit("/", 1)[-1]: filesystem.cat_file(name) for name in filesystem.ls(path, detail=False)} == files(
        in_four
    )


def test_labelled_texts_are_prepared_with_their_labels(tmp_path):
    rows = [{"text": f"number {number}", "label": ["odd", "even"][number % 2]} for number in range(12)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = Recipe.of(task="text-classification", train=(str(tmp_path / "t.jsonl"),), vocab_size=270)
    place = prepared(mine, tmp_path / "shards", 1)
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["labels"] == ["even", "odd"] and manifest["shards"][0]["report"]["kept"] == 12
    encoder = {"decoder_layers": None}
    from_text = trained(mine, tmp_path / "text", (2,), tokenizer=str(place), **encoder)
    from_shards = trained(mine, tmp_path / "from-shards", (2,), train=(f"prepared:{place}",), **encoder)
    assert model(from_text) == model(from_shards)


def test_a_store_whose_package_is_missing_is_named_in_one_sentence(whole, recipe, tmp_path, missing):
    missing("adlfs")
    mine = recipe.with_options(train=("prepared:abfs://container/shards",))
    with refused(OSError, "abfs://container/shards", "adlfs"):
        gather_inputs(mine, RunDirectory(tmp_path / "run"), print)


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The URL of a bucket of a local server that speaks S3."""
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install s3fs 'moto[server]'")
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install s3fs 'moto[server]'")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**environment, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("corpora")
    yield "s3://corpora"
    running.stop()


def test_text_is_read_from_s3_and_shards_are_written_there_and_trained_on(recipe, in_four, bucket, tmp_path):
    for path in recipe.data.train[0].parts:
        fsspec.filesystem("s3").put_file(path, f"{bucket}/{os.path.basename(path)}")
    mine = recipe.with_options(train=tuple(f"{bucket}/text.{name}" for name in ("en", "de")))
    preparation = begun(mine, f"{bucket}/shards", 4)
    assert [preparation.run_task(number) for number in range(4)] == [True] * 4
    assert preparation.finish() is not None and not preparation.run_task(1)
    corpus = {"vocab_size": None, "part_pairs": 30}
    one = trained(recipe, tmp_path / "one", (4,), train=(f"prepared:{bucket}/shards",), **corpus)
    other = trained(recipe, tmp_path / "other", (4,), train=(f"prepared:{in_four}",), **corpus)
    assert model(one) == model(other)


def test_a_card_names_a_prepared_corpus_and_no_dataset_of_the_hub(recipe, whole, tmp_path):
    card = (trained(recipe, tmp_path / "run", (1,), train=(f"prepared:{whole}",)) / "README.md").read_text()
    assert "- Trained on prepared:shards: 60 pairs" in card
    assert "datasets:" not in card and str(whole.parent) not in card


def test_a_dry_run_says_where_it_reads_and_plans_the_part_that_comes(recipe, in_four, tmp_path, capsys):
    corpus = {"train": (f"prepared:{in_four}",), "part_pairs": 30}
    place = trained(recipe, tmp_path / "run", (2,), **corpus)
    capsys.readouterr()
    fields = {"max_steps": 8, "output": str(place), "metrics": (), **SHAPE, **STEPS, **corpus}
    dry_run(recipe.with_options(**fields))
    said = capsys.readouterr().out
    assert f"reads: {in_four} (60 pairs, by position)" in said and "begins: after step 2 of 8" in said
    planned = [int(line.split()[4]) for line in said.splitlines() if line.startswith("  step ")]
    again = json.loads((trained(recipe, place, (8,), **corpus) / "summary.json").read_text())
    assert len(planned) == 6 and again["steps"] == 8


def test_copies_of_shards_go_with_the_process(in_four, tmp_path):
    program = f"""
import fsspec
from pathlib import Path
from vanilla_transformer.extras.many_machines.shards import ShardedCorpus
filesystem, path = fsspec.url_to_fs("memory://gone")
filesystem.put({str(in_four)!r}, path, recursive=True)
copies = Path({str(tmp_path / "copies")!r})
corpus = ShardedCorpus("memory://gone", seed=1, part_pairs=30, copies=copies)
part = next(iter(corpus.epoch_parts(0)))
assert len(part.corpus) and list(copies.glob("*.arrow"))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not (tmp_path / "copies").exists()


def test_processes_share_each_parts_steps_and_rows_keep_their_numbers(in_four, tmp_path):
    corpus = ShardedCorpus(str(in_four), seed=1, part_pairs=30, copies=tmp_path)
    parts = [part.number for epoch in range(2) for part in corpus.epoch_parts(epoch)]

    def make_plan(rows):
        return StepPlan(*rows.lengths.values(), batch_tokens=120, batches_per_step=2, seed=1)

    def rows_of_steps(rank, processes, position=(0, 0, 0)):
        """The numbers of the rows in each step of two epochs, and their ids."""
        found = []

        def collate(rows, random):
            found[-1][1].update(zip(random.rows.tolist(), map(bytes, rows["source"]), strict=True))
            return {}

        epoch, part, done = position
        start = Progress(epoch=epoch, step_in_part=done, part=part)
        found.append((None, {}))
        steps = local_steps(make_plan, corpus, collate, start, rank=rank, processes=processes)
        for step in itertools.takewhile(lambda step: step.epoch < 2, steps):
            found[-1] = (step.epoch, step.part), found[-1][1]
            found.append((None, {}))
        return found[:-1]

    one = rows_of_steps(0, 1)
    assert sorted({place for place, _ in one}) == sorted(set(enumerate_parts(parts)))
    for shares in zip(*(rows_of_steps(rank, 3) for rank in range(3)), one, strict=True):
        *several, (place, rows) = shares
        assert {which for which, _ in several} == {place}
        assert {number: ids for _, some in several for number, ids in some.items()} == rows
        assert sum(len(some) for _, some in several) == len(rows)
    for epoch in range(2):
        numbers = [number for place, rows in one if place[0] == epoch for number in rows]
        assert sorted(numbers) == list(range(len(corpus)))
    ids = [
        {number: ids for place, rows in one if place[0] == epoch for number, ids in rows.items()} for epoch in (0, 1)
    ]
    assert ids[0] == ids[1]
    first = next(index for index, (place, _) in enumerate(one) if place == (0, 1))
    assert rows_of_steps(0, 1, (0, 1, 1)) == one[first + 1 :]


def enumerate_parts(numbers):
    """Parts with their epochs, from their numbers one epoch after the other."""
    epoch = -1
    for number in numbers:
        epoch += number == 0
        yield epoch, number


def test_datatroves_local_executor_makes_the_same_shards(text, in_four, tmp_path):
    pytest.importorskip("datatrove")
    options = ["--vocab-size", "270", "--max-length", "22", "--tasks", "4", "--engine", "local"]
    assert main(["prepare", "--train", *text, "--output", str(tmp_path / "out"), *options]) == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert made == files(in_four)


def test_a_repeated_task_removes_the_remains_of_a_killed_one(recipe, tmp_path):
    prepared(recipe, tmp_path / "shards", 2)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()}
    for name in ("tokens-00001.arrow", "lengths-00001.npy", "report-00001.json", "manifest.json"):
        (tmp_path / "shards" / name).rename(tmp_path / "shards" / f".{name}.0123abcd.tmp")
    again = ShardPreparation(recipe, str(tmp_path / "shards"), 2, print)
    assert again.run_task(1) and again.finish() is not None
    assert {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()} == whole


def test_a_file_that_another_has_put_there_first_stays(tmp_path):
    folder, file = TaskFolder(str(tmp_path / "folder")), tmp_path / "file"
    file.write_text("same")
    folder.put(file, "name")
    with folder._beside(file, "name") as late:
        folder.put(file, "name")  # The other is done first, and takes all other copies away.
        os.replace(late, tmp_path / "folder" / "name")
    assert [path.read_text() for path in (tmp_path / "folder").iterdir()] == ["same"]
