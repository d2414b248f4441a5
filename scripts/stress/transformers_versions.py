"""Runs the model's tests with the oldest and the newest version of transformers that pyproject.toml allows.

`make test-versions`, or `python -m scripts.stress.transformers_versions`. Each version is installed beside the
environment, under build/, with its requirements except torch.
"""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
# The beginning of the line in which pip lists versions.
AVAILABLE = "Available versions: "


def allowed() -> SpecifierSet:
    """Returns the versions of transformers that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(
        requirement.specifier
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == "transformers"
    )


def published() -> list[str]:
    """Lists the versions in the package index."""
    command = [sys.executable, "-m", "pip", "index", "versions", "transformers"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return next(line for line in answer.splitlines() if line.startswith(AVAILABLE))[len(AVAILABLE) :].split(", ")


def oldest_and_newest(versions: list[str], specifier: SpecifierSet) -> list[str]:
    """Returns the oldest and newest allowed version, or the only one.

    Raises:
        ValueError: No version is allowed.
    """
    fitting = sorted(specifier.filter(versions), key=Version)
    if not fitting:
        raise ValueError(f"No version of transformers fits {specifier}; the newest is {max(versions, key=Version)}.")
    return list(dict.fromkeys((fitting[0], fitting[-1])))


def environment(version: str) -> dict[str, str]:
    """Returns the variables with which Python finds that version first; installs it if missing."""
    if version == importlib.metadata.version("transformers"):
        return dict(os.environ)
    place = ROOT / "build" / f"transformers-{version}"
    if not (place / "transformers" / "__init__.py").is_file():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place)]
        subprocess.run([*command, f"transformers=={version}"], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}


def main() -> int:
    """Tests each version; returns 1 if any test fails."""
    failed = []
    for version in oldest_and_newest(published(), allowed()):
        print(f"transformers {version}", flush=True)
        tests = [sys.executable, "-m", "pytest", "-n", "2", *(sys.argv[1:] or ["tests/model"])]
        if subprocess.run(tests, cwd=ROOT, env=environment(version)).returncode:
            failed.append(version)
    if failed:
        print(f"Tests fail with transformers {' and '.join(failed)}.", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
