"""Runs transformers' own shared tests on the models of this package, and on comparable models of the library.

`make test-library`, or `python -m scripts.stress.library_tests [pytest's options]`. The tests come from the source
package of the installed version, under build/; modules that they import but the package lacks (the tests of `generate`
and of exports) are replaced by empty classes.
"""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = Path(__file__).with_name("library_suite.py")
# Modules that the shared tests import and the source package lacks, with their classes.
ABSENT = {"exporters/test_export.py": "ExportTesterMixin", "generation/test_utils.py": "GenerationTesterMixin"}


def fetch(version: str) -> Path:
    """Returns a folder with the library's `tests`, downloaded from the package index if missing."""
    place = ROOT / "build" / f"transformers-{version}-source"
    if (place / "complete").is_file():
        return place
    place.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(place)]
    subprocess.run([*pip, "download", *source, f"transformers=={version}"], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", str(place), "parameterized"], check=True)
    with tarfile.open(place / f"transformers-{version}.tar.gz") as archive:
        for member in archive.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name.startswith("tests/"):
                archive.extract(member, place, filter="data")
    tests = place / "tests"
    for name, mixin in ABSENT.items():
        if not (tests / name).is_file():
            (tests / name).parent.mkdir(exist_ok=True)
            (tests / name).write_text(f"class {mixin}:\n    pass\n")
    for folder in (tests, *(path for path in tests.rglob("*") if path.is_dir())):
        (folder / "__init__.py").touch()
    (tests / "fixtures").mkdir(exist_ok=True)
    (tests / "fixtures" / "sample_text.txt").write_text("This is a text.\n\nIt has two paragraphs.\n")
    (place / "complete").touch()
    return place


def table(report: Path) -> str:
    """Formats the counts of each class, and the reasons of failures and skips, from pytest's JUnit file."""
    counts: dict[str, Counter[str]] = {}
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        family, outcome, reason = case.get("classname", "").rpartition(".")[2], "passed", ""
        for kind, name in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            if (found := case.find(kind)) is not None:
                outcome, reason = name, (found.get("message") or "").strip().splitlines()[0]
        counts.setdefault(family, Counter())[outcome] += 1
        if outcome != "passed":
            reasons.setdefault((outcome, family, reason[:160]), []).append(case.get("name", ""))
    lines = ["| class | passed | failed | skipped |", "|---|---|---|---|"]
    lines += [
        f"| {family} | {some['passed']} | {some['failed']} | {some['skipped']} |"
        for family, some in sorted(counts.items())
    ]
    lines.append("")
    lines += [
        f"- {outcome}: {family}: {reason} ({', '.join(names)})"
        for (outcome, family, reason), names in sorted(reasons.items())
    ]
    return "\n".join(lines)


def main() -> int:
    """Runs the suite and prints the table; returns 1 if a test of one of our models fails."""
    place = fetch(importlib.metadata.version("transformers"))
    report = ROOT / "build" / "library-tests.xml"
    paths = os.pathsep.join(map(str, (place, ROOT)))
    # The project's own pytest settings do not know the library's marks.
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-W", "ignore", f"--junitxml={report}"]
    subprocess.run(
        [*command, str(SUITE), *sys.argv[1:]],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    print(result := table(report))
    return int("- failed: Ours" in result or "| Ours" not in result)


if __name__ == "__main__":
    sys.exit(main())
