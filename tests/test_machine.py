"""The machine: cores by affinity, quota and OMP_NUM_THREADS, how threads wait, and freed memory that is kept."""

import os
import platform
import subprocess
import sys

import pytest

from vanilla_transformer.machine import own_threads, prepare_threads, usable_cores

HALF = max(1, usable_cores() // 2)
FAULTS = """
import resource, torch
from vanilla_transformer.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(32 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(faults(), min(faults() for _ in range(5)))
"""


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/../elsewhere\n", {"cpu.max": "100000 100000\n"}, 1),
        ("1:memory:/\n", {"memory/cpu.max": "100000 100000\n"}, 8),
    ],
)
def test_a_containers_quota_counts(monkeypatch, tmp_path, own, files, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    there = {"proc/self/cgroup": own, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in there.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": "many"}, usable_cores()),
        ({"LOCAL_WORLD_SIZE": "2"}, HALF),
        ({"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}, 1),
        ({"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, HALF),
        ({"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "none"}, 3),
    ],
)
def test_processes_share_the_cores_unless_omp_num_threads_is_set(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert own_threads() == expected
    prepare_threads()
    assert os.environ["OMP_NUM_THREADS"].partition(",")[0] == str(expected) and own_threads() == expected


@pytest.mark.parametrize(("words", "spins"), [(["train"], 5_000), (["translate"], 20_000)])
def test_the_command_chooses_before_torch_is_loaded(words, spins):
    code = """if True:
        import os, sys
        from vanilla_transformer.cli import program
        def run(words):
            print("torch" in sys.modules, os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"])
            print("OMP_NUM_THREADS" in os.environ)
        program._run = run
        program.main(sys.argv[1:])
    """
    said = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout
    assert said == f"False passive {spins}\nTrue\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_not_given_back():
    # Of hundreds of processes on a busy machine, one had its heap elsewhere, where large tensors are not kept.
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
        first, later = map(int, done.stdout.split())
        if later < first / 4:
            break
    assert later < first / 4
