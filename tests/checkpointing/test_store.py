import dataclasses
import json

import pytest

from vanilla_transformer.checkpointing.store import (
    Progress,
    checkpoints_to_average,
    commit_checkpoint,
    delete_checkpoints_after,
    latest_complete_checkpoint,
    list_checkpoints,
    partial_path,
    prune_checkpoints,
)


def write(directory, step):
    partial = partial_path(directory, step)
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(b"weights" * step)
    (partial / "optimizer.bin").write_bytes(b"moments" * step)
    return commit_checkpoint(partial, Progress(step=step, window_loss=0.1 + step))


def with_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


def with_file(path, name, **changes):
    files = json.loads((path / "manifest.json").read_text())["files"]
    with_manifest(path, files={**files, name: files.get(name, files["optimizer.bin"]) | changes})


@pytest.fixture
def said():
    return []


def test_the_latest_saved_checkpoint_is_found(tmp_path, said):
    write(tmp_path, 3)
    write(tmp_path, 12)
    checkpoint = latest_complete_checkpoint(tmp_path, said.append)
    assert checkpoint.step == 12
    assert checkpoint.progress() == Progress(step=12, window_loss=12.1)
    assert said == []


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: (path / "optimizer.bin").write_bytes(b"moments"), "optimizer.bin has 7 bytes instead of 84"),
        (
            lambda path: (path / "optimizer.bin").write_bytes(b"Moments" * 12),
            "the contents of optimizer.bin have",
        ),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors cannot be read"),
        (lambda path: (path / "manifest.json").unlink(), "its manifest.json is missing or damaged"),
        (
            lambda path: (path / "manifest.json").write_text('{"step": 12, "resum'),
            "its manifest.json is missing",
        ),
        (lambda path: (path / "manifest.json").write_text("[]"), "its manifest.json is missing or damaged"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff"), "its manifest.json is missing or damaged"),
        (lambda path: (path / "manifest.json").write_text("[" * 99_999), "its manifest.json is missing or damaged"),
        (lambda path: with_manifest(path, step=13), "its manifest.json is missing or damaged"),
        (lambda path: with_manifest(path, resumable=[]), "its manifest.json is missing or damaged"),
        (lambda path: with_manifest(path, files={}), "its manifest.json is missing or damaged"),
        (lambda path: with_manifest(path, files={"model.safetensors": 3}), "its manifest.json is missing or damaged"),
        (lambda path: with_file(path, "optimizer.bin", bytes="84"), "its manifest.json is missing or damaged"),
        (lambda path: with_file(path, "../other/optimizer.bin", bytes=84), "its manifest.json is missing or damaged"),
        (lambda path: path.rename(path.with_name("step-twelve")) and path.mkdir(), "its manifest.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_the_reason(tmp_path, said, harm, reason):
    write(tmp_path, 3)
    harm(write(tmp_path, 12))
    assert latest_complete_checkpoint(tmp_path, said.append).step == 3
    assert all("Skipped checkpoint step-" in line for line in said)
    assert any("step-00000012" in line and reason in line for line in said)


def test_unfinished_checkpoints_are_ignored_and_removed(tmp_path, said):
    write(tmp_path, 3)
    partial = partial_path(tmp_path, 12)
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"weig")
    assert latest_complete_checkpoint(tmp_path, said.append).step == 3
    delete_checkpoints_after(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_pruning_keeps_those_of_doubled_steps_to_look_back_at(tmp_path, said):
    for step in range(2, 22, 2):
        write(tmp_path, step)
        prune_checkpoints(tmp_path, save_steps=2, last_step=None, averaged=1, doubling=True)
    checkpoints = list_checkpoints(tmp_path, said.append)
    kept = [(checkpoint.step, checkpoint.resumable) for checkpoint in checkpoints]
    assert kept == [(2, False), (4, False), (8, False), (16, False), (18, True), (20, True)]


def test_going_back_to_a_checkpoint_removes_the_damaged_later_ones(tmp_path, said):
    for step in (3, 6, 12):
        write(tmp_path, step)
    delete_checkpoints_after(tmp_path, 6)
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path, said.append)] == [3, 6]


def test_pruning_keeps_the_last_ones_for_the_mean_and_two_to_go_on_from(tmp_path, said):
    for step in (2, 4, 6, 7, 8):
        write(tmp_path, step)
        prune_checkpoints(tmp_path, save_steps=2, last_step=None, averaged=3)
    checkpoints = list_checkpoints(tmp_path, said.append)
    assert [(checkpoint.step, checkpoint.resumable) for checkpoint in checkpoints] == [
        (4, False),
        (6, False),
        (7, True),
        (8, True),
    ]
    assert all(checkpoint.damage() is None for checkpoint in checkpoints)
    assert not (tmp_path / "step-00000004" / "optimizer.bin").exists()
    assert said == []


def test_a_checkpoint_that_a_signal_asked_for_does_not_count_in_the_mean(tmp_path, said):
    for step in (2, 4, 5, 6, 7):
        write(tmp_path, step)
    assert [one.step for one in checkpoints_to_average(tmp_path, 2, 7, 3, said.append)] == [4, 6, 7]
    assert [one.step for one in checkpoints_to_average(tmp_path, 2, None, 3, said.append)] == [2, 4, 6]


def test_progress_of_another_version_is_told_and_not_gone_on_from(tmp_path, said):
    write(tmp_path, 3)
    partial = partial_path(tmp_path, 12)
    partial.mkdir()
    for name in ("model.safetensors", "optimizer.bin"):
        (partial / name).write_bytes(b"numbers")
    later = dataclasses.make_dataclass("Later", [("place_in_space", int, 0)], bases=(Progress,))
    commit_checkpoint(partial, later(step=12))
    assert latest_complete_checkpoint(tmp_path, said.append).step == 3
    assert said == ["Skipped checkpoint step-00000012: progress.json is from another version of this package."]


def test_progress_of_an_earlier_version_is_that_of_one_part(tmp_path, said):
    write(tmp_path, 3)
    path = tmp_path / "step-00000003"
    values = json.loads((path / "progress.json").read_text())
    del values["part"], values["step_in_part"], values["best_dev_loss"]
    (path / "progress.json").write_text(json.dumps({**values, "epoch": 2, "step_in_epoch": 7, "best_dev_nll": 1.5}))
    (checkpoint,) = list_checkpoints(tmp_path, said.append)
    progress = checkpoint.progress()
    assert (progress.epoch, progress.part, progress.step_in_part, progress.best_dev_loss) == (2, 0, 7, 1.5)


def test_files_that_are_no_checkpoints_stay(tmp_path, said):
    write(tmp_path, 3)
    (tmp_path / "step-by-step").mkdir()
    (tmp_path / "step-00000009").write_text("a file")
    assert latest_complete_checkpoint(tmp_path, said.append).step == 3
    assert [line.split(":")[0] for line in said] == [
        "Skipped checkpoint step-00000009",
        "Skipped checkpoint step-by-step",
    ]
    delete_checkpoints_after(tmp_path, 3)
    prune_checkpoints(tmp_path, save_steps=3, last_step=None, averaged=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-by-step"]


def test_pruning_gets_over_a_file_that_is_gone(tmp_path):
    for step in (2, 4, 6):
        write(tmp_path, step)
    (tmp_path / "step-00000002" / "optimizer.bin").unlink()
    prune_checkpoints(tmp_path, save_steps=2, last_step=None, averaged=3)
    assert sorted(path.name for path in (tmp_path / "step-00000002").iterdir()) == [
        "manifest.json",
        "model.safetensors",
    ]
