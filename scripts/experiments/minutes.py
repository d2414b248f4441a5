"""What do minutes of one core teach? Trains the cells of a sweep, beside other work, and writes their table.

    taskset -c 0 nice python -m scripts.experiments.minutes CELLS --output sweep

A line of CELLS has a name and, behind a colon, what `train` is given. Lines may be added while the sweep runs. The
clock is that of the process, which stands still while others have the core.
"""

import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from scripts.benchmarks.busy import processor
from scripts.experiments.runs import ExperimentError, command, write
from scripts.turns import cells as row, report
from vanilla_transformer.recipe.reading import load_recipe

# All that a run measures by is the time that its process has computed, from its start.
PROGRAM = """\
import sys, time
time.perf_counter = time.process_time
from vanilla_transformer.cli import main
code = main(sys.argv[1:])
if sys.argv[1] == "train":
    print(f"CPU seconds: {time.process_time():.1f}")
sys.exit(code)
"""
COLUMNS = ("steps", "target tokens", "minutes", "loss on dev", "scores on test")


@dataclass(frozen=True)
class Minutes:
    """Train the cells of a file, each in minutes of one core, and write their table to minutes.md."""

    cells: Annotated[Path, Positional, arg(help="lines of the form `name: options of train`")]
    output: Path
    """Directory of the table and of a folder for each cell; a cell that is there is not made again."""
    keep: bool = False
    """Whether to keep the models; otherwise their metrics and logs stay alone."""


def main(words: list[str]) -> None:
    """Trains the cells that are missing, in the order of the file, which is read again after each."""
    options = tyro.cli(Minutes, prog="scripts.experiments.minutes", args=words, config=(OmitArgPrefixes,))
    while waiting := [one for one in read_cells(options.cells).items() if not result_of(options, one[0]).exists()]:
        name, given = waiting[0]
        result = train(result_of(options, name).parent, given, options.keep)
        write(result_of(options, name), json.dumps(result))
        report(f"{name}: {', '.join(map(str, result.values()))}; {len(waiting) - 1} to go")
        write(options.output / "minutes.md", table(options))


def read_cells(file: Path) -> dict[str, list[str]]:
    """Returns the words for `train` of each cell, by its name."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    for line in lines:
        if ":" not in line:
            raise ExperimentError(f"{file}: {line!r} must have the form `name: options of train`.")
    return {name.strip(): shlex.split(words) for name, words in (line.split(":", 1) for line in lines)}


def result_of(options: Minutes, name: str) -> Path:
    """Returns the file that a cell writes last."""
    return options.output / name / "result.json"


def table(options: Minutes) -> str:
    """Returns the cells that are over as a Markdown table, each with what it was given."""
    lines = [f"One core of {processor()}; the minutes are of its computing.", ""]
    lines += [row(["cell", *COLUMNS, "options"]), row(["---"] * (2 + len(COLUMNS)))]
    for name, given in read_cells(options.cells).items():
        if (file := result_of(options, name)).exists():
            result = json.loads(file.read_text(encoding="utf-8"))
            lines.append(row([name, *(str(result[column]) for column in COLUMNS), shlex.join(given)]))
    return "\n".join(lines) + "\n"


def train(folder: Path, given: list[str], keep: bool) -> dict[str, Any]:
    """Trains a cell, and scores it on the whole of test; that time does not count."""
    folder.mkdir(parents=True, exist_ok=True)
    model, log = folder / "model", folder / "output.log"
    try:
        trained = run(log, "train", *given, "--processes", "1", "--output", str(model))
        test = load_recipe(model / "recipe.yaml").data.test[0].parts
        scores = json.loads(run(log, "evaluate", str(model), "--data", *test, "--json"))["scores"]
    except subprocess.CalledProcessError:
        return dict.fromkeys(COLUMNS, f"failed: see {log}")
    if not keep:
        shutil.rmtree(model / "checkpoints")
        (model / "model.safetensors").unlink()
    summary = json.loads((model / "summary.json").read_text(encoding="utf-8"))
    figures = ", ".join(f"{score['name']} {score['value']:.2f}" for score in scores)
    minutes = f"{float(trained.split()[-1]) / 60:.1f}"
    values = summary["steps"], summary["target_tokens"], minutes, f"{summary['last_dev_loss']:.3f}", figures
    return dict(zip(COLUMNS, values, strict=True))


def run(log: Path, *words: str) -> str:
    """Runs a command on the clock of its process, adds all that it writes to the log, and returns its output."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{shlex.join(words)}\n{ended.stderr}{ended.stdout}")
    ended.check_returncode()
    return ended.stdout


if __name__ == "__main__":
    with command("scripts.experiments.minutes"):
        main(sys.argv[1:])
